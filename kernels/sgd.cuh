// sgd.cuh: SGD with momentum, gradient clipping and fp32 master weights, as torch.optim.SGD (dampening
//   0) computes it
//   g = scale * gradient + decay * p
//   with momentum: b = momentum b + g, and then g = b (Nesterov: g + momentum b)
//   p = p - lr g
//   b starts from zero, so that the first step leaves b = g, as PyTorch does.
//   lr and scale are in OptimizerState (optimizer_state.cuh).
//   Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning"
//   (Nesterov's form)
#pragma once
#include "kernels/elementwise.cuh"
#include "kernels/optimizer_state.cuh"

struct SgdStep {
    double momentum, weight_decay;
    bool nesterov = false;
};

struct SgdCoefficients {
    float momentum, weight_decay;
    bool nesterov;
};

// Momentum: true if there is a buffer b.
template <class W, int N, class T, bool Momentum>
__global__ void sgd_kernel(T* params, float* master, float* b, const float* grads, size_t n,
                           SgdCoefficients c, const OptimizerState* state) {
    const float scale = state->scale, lr = static_cast<float>(state->lr);
    if (scale == 0.0f) return;
    const bool separate = static_cast<const void*>(params) != static_cast<const void*>(master);
    const float of_gradient = c.nesterov ? 1.0f : 0.0f, of_buffer = c.nesterov ? c.momentum : 1.0f;
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        Vec<float, M> g = load_streaming<M>(grads + i), p = load_streaming<M>(master + i);
        UNROLL
        for (int k = 0; k < M; k++) g[k] = simt::fused_multiply_add(g[k], scale, c.weight_decay * p[k]);
        if constexpr (Momentum) {
            Vec<float, M> buffer = load_streaming<M>(b + i);
            UNROLL
            for (int k = 0; k < M; k++) {
                buffer[k] = simt::fused_multiply_add(c.momentum, buffer[k], g[k]);
                g[k] = simt::fused_multiply_add(of_gradient, g[k], of_buffer * buffer[k]);
            }
            store_streaming(b + i, buffer);
        }
        UNROLL
        for (int k = 0; k < M; k++) p[k] -= lr * g[k];
        store_streaming(master + i, p);
        if (separate) store(params + i, p);
    });
}

// params (n) = round(master);  master, b (n) fp32 are updated from grads (n) fp32. b = nullptr: no
// momentum. With T = float, params may be master. Reads 8 and writes 4 + sizeof(T) bytes an element, and
// 4 more of each with momentum; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void sgd_update(T* params, float* master, float* b, const float* grads, size_t n, const SgdStep& step,
                const OptimizerState* state, stream_t stream) {
    CHECK(b || step.momentum == 0, "sgd: a momentum of {} needs a buffer", step.momentum);
    const SgdCoefficients c{.momentum = static_cast<float>(step.momentum),
                            .weight_decay = static_cast<float>(step.weight_decay),
                            .nesterov = step.nesterov};
    launch_elementwise<W, BesideFloats<W, T>>(
        n, stream, [&](auto N) { return b ? sgd_kernel<W, N(), T, true> : sgd_kernel<W, N(), T, false>; },
        params, master, b, grads, n, c, state);
}
