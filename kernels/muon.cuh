// muon.cuh: what Muon computes element by element. Between normalise and update, orthogonalise.h brings every
//   singular value of x near 1.
//   m = m + (1 - momentum) (g - m)           g = scale * gradient
//   u = m + (1 - momentum) (g - m)           Nesterov: another step towards g, which m does not keep
//   x = u / max(|u|, 1e-7)                   |u|: the Euclidean norm of all elements
//   p = p (1 - lr decay) - lr factor x       the decay is by lr alone
//   lr and scale are in OptimizerState (optimizer_state.cuh).
//   Jordan et al. 2024, kellerjordan.github.io/posts/muon; as torch.optim.Muon computes it
#pragma once
#include "kernels/elementwise.cuh"
#include "kernels/optimizer_state.cuh"

template <class W, int N>
__global__ void muon_momentum_kernel(float* u, float* m, const float* grads, size_t n,
                                     float one_minus_momentum, const OptimizerState* state) {
    const float scale = state->scale;
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        Vec<float, M> mean = load_streaming<M>(m + i), step = simt::broadcast<M>(0.0f);
        if (scale != 0.0f) {
            const Vec<float, M> g = load_streaming<M>(grads + i);
            UNROLL
            for (int k = 0; k < M; k++) {
                mean[k] += one_minus_momentum * (g[k] * scale - mean[k]);
                step[k] = mean[k] + one_minus_momentum * (g[k] * scale - mean[k]);
            }
            store_streaming(m + i, mean);
        }
        store(u + i, step);
    });
}

// u (n) from m (n), which is updated, and grads (n). A skipped step leaves m and writes zeros to u. Reads 8
// bytes an element and writes 8; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>>
void muon_momentum(float* u, float* m, const float* grads, size_t n, double momentum,
                   const OptimizerState* state, stream_t stream) {
    launch_elementwise<W, float>(
        n, stream, [](auto N) { return muon_momentum_kernel<W, N()>; }, u, m, grads, n,
        static_cast<float>(1.0 - momentum), state);
}

template <class W, int N, class T>
__global__ void muon_normalise_kernel(T* x, const float* u, size_t n, const float* norm_squared) {
    const float norm = simt::sqrt(*norm_squared), inverse = 1.0f / (norm < 1e-7f ? 1e-7f : norm);
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        Vec<float, M> values = load<M>(u + i);
        UNROLL
        for (int k = 0; k < M; k++) values[k] *= inverse;
        store(x + i, values);
    });
}

// x (n) = u (n) / its norm, whose square is on the device (global_norm.cuh). Reads 4 bytes an element and
// writes sizeof(T); bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void muon_normalise(T* x, const float* u, size_t n, const float* norm_squared, stream_t stream) {
    launch_elementwise<W, BesideFloats<W, T>>(
        n, stream, [](auto N) { return muon_normalise_kernel<W, N(), T>; }, x, u, n, norm_squared);
}

template <class W, int N, class T>
__global__ void muon_update_kernel(T* params, float* master, const T* x, size_t n, double factor,
                                   double decay, const OptimizerState* state) {
    if (state->scale == 0.0f) return;
    const float step_size = static_cast<float>(state->lr * factor),
                decay_factor = static_cast<float>(1.0 - state->lr * decay);
    const bool separate = static_cast<const void*>(params) != static_cast<const void*>(master);
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        const Vec<float, M> direction = load<M>(x + i);
        Vec<float, M> p = load_streaming<M>(master + i);
        UNROLL
        for (int k = 0; k < M; k++)
            p[k] = simt::fused_multiply_add(p[k], decay_factor, -(step_size * direction[k]));
        store_streaming(master + i, p);
        if (separate) store(params + i, p);
    });
}

// params (n) = round(master); master (n) fp32 is updated from x (n). With T = float, params may be master.
// Reads 4 + sizeof(T) bytes an element and writes as many, or 4 if params is master; bound by memory
// bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void muon_update(T* params, float* master, const T* x, size_t n, double factor, double decay,
                 const OptimizerState* state, stream_t stream) {
    launch_elementwise<W, BesideFloats<W, T>>(
        n, stream, [](auto N) { return muon_update_kernel<W, N(), T>; }, params, master, x, n, factor, decay,
        state);
}
