// rmsprop.cuh: RMSprop with momentum, gradient clipping and fp32 master weights, as torch.optim.RMSprop
//   (not centered) computes it
//   g = scale * gradient + decay * p,   v = alpha v + (1 - alpha) g^2,   u = g / (sqrt(v) + eps)
//   with momentum: b = momentum b + u, and then u = b
//   p = p - lr u
//   lr and scale are in OptimizerState (optimizer_state.cuh).
//   Tieleman and Hinton 2012, lecture 6.5 of Neural Networks for Machine Learning
#pragma once
#include "kernels/elementwise.cuh"
#include "kernels/optimizer_state.cuh"

struct RmspropStep {
    double alpha, eps, momentum, weight_decay;
};

struct RmspropCoefficients {
    float alpha, one_minus_alpha, eps, momentum, weight_decay;
};

// Momentum: true if there is a buffer b.
template <class W, int N, class T, bool Momentum>
__global__ void rmsprop_kernel(T* params, float* master, float* v, float* b, const float* grads, size_t n,
                               RmspropCoefficients c, const OptimizerState* state) {
    const float scale = state->scale, lr = static_cast<float>(state->lr);
    if (scale == 0.0f) return;
    const bool separate = static_cast<const void*>(params) != static_cast<const void*>(master);
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        Vec<float, M> g = load_streaming<M>(grads + i), p = load_streaming<M>(master + i),
                      square = load_streaming<M>(v + i);
        UNROLL
        for (int k = 0; k < M; k++) {
            const float gradient = simt::fused_multiply_add(g[k], scale, c.weight_decay * p[k]);
            square[k] = simt::fused_multiply_add(c.alpha, square[k], c.one_minus_alpha * gradient * gradient);
            g[k] = gradient / (simt::sqrt(square[k]) + c.eps);
        }
        store_streaming(v + i, square);
        if constexpr (Momentum) {
            Vec<float, M> buffer = load_streaming<M>(b + i);
            UNROLL
            for (int k = 0; k < M; k++) g[k] = buffer[k] = c.momentum * buffer[k] + g[k];
            store_streaming(b + i, buffer);
        }
        UNROLL
        for (int k = 0; k < M; k++) p[k] -= lr * g[k];
        store_streaming(master + i, p);
        if (separate) store(params + i, p);
    });
}

// params (n) = round(master);  master, v, b (n) fp32 are updated from grads (n) fp32. b = nullptr: no
// momentum. With T = float, params may be master. Reads 12 and writes 8 + sizeof(T) bytes an element,
// and 4 more of each with momentum; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void rmsprop_update(T* params, float* master, float* v, float* b, const float* grads, size_t n,
                    const RmspropStep& step, const OptimizerState* state, stream_t stream) {
    CHECK(b || step.momentum == 0, "rmsprop: a momentum of {} needs a buffer", step.momentum);
    const RmspropCoefficients c{.alpha = static_cast<float>(step.alpha),
                                .one_minus_alpha = static_cast<float>(1.0 - step.alpha),
                                .eps = static_cast<float>(step.eps),
                                .momentum = static_cast<float>(step.momentum),
                                .weight_decay = static_cast<float>(step.weight_decay)};
    launch_elementwise<W, BesideFloats<W, T>>(
        n, stream,
        [&](auto N) { return b ? rmsprop_kernel<W, N(), T, true> : rmsprop_kernel<W, N(), T, false>; },
        params, master, v, b, grads, n, c, state);
}
