// adamw.cuh: AdamW and Adam with gradient clipping and fp32 master weights
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2,   t = steps so far, this one included
//   u = lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
//   AdamW: g = scale * gradient;               p = p (1 - lr decay) - u
//   Adam:  g = scale * gradient + decay * p;   p = p - u
//   lr, scale and t are in OptimizerState (optimizer_state.cuh).
//   Loshchilov and Hutter 2019, arXiv:1711.05101; Kingma and Ba 2015, arXiv:1412.6980; as
//   torch.optim.AdamW and torch.optim.Adam compute them
#pragma once
#include "kernels/elementwise.cuh"
#include "kernels/optimizer_state.cuh"

struct AdamWStep {
    double beta1, beta2, eps, weight_decay;
    bool decoupled = true;  // true: AdamW; false: Adam, whose weight decay is added to the gradient
    double rate = 1;        // the learning rate is this multiple of the state's
};

// The constants of a step as the kernel uses them. 1 - beta is computed in double precision, because in
// fp32 the subtraction 1 - 0.999 loses three digits.
struct AdamWCoefficients {
    double rate, decay;
    float one_minus_beta1, beta2, one_minus_beta2, eps, l2;
};

template <class W, int N, class T>
__global__ void adamw_kernel(T* params, float* master, float* m, float* v, const float* grads, size_t n,
                             AdamWCoefficients c, const OptimizerState* state) {
    const float scale = state->scale;
    if (scale == 0.0f) return;
    const double lr = state->lr * c.rate;
    const float step_size = static_cast<float>(lr) / state->bias_correction1,
                inverse_sqrt = 1.0f / state->sqrt_bias_correction2;
    const float decay_factor = static_cast<float>(1.0 - lr * c.decay);
    const bool separate = static_cast<const void*>(params) != static_cast<const void*>(master);
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        const Vec<float, M> g = load_streaming<M>(grads + i);
        Vec<float, M> p = load_streaming<M>(master + i), mean = load_streaming<M>(m + i),
                      square = load_streaming<M>(v + i);
        UNROLL
        for (int k = 0; k < M; k++) {
            const float gradient = simt::fused_multiply_add(g[k], scale, c.l2 * p[k]);
            mean[k] += c.one_minus_beta1 * (gradient - mean[k]);
            square[k] = simt::fused_multiply_add(c.beta2, square[k], c.one_minus_beta2 * gradient * gradient);
            p[k] = p[k] * decay_factor - step_size * mean[k] / (simt::sqrt(square[k]) * inverse_sqrt + c.eps);
        }
        store_streaming(m + i, mean);
        store_streaming(v + i, square);
        store_streaming(master + i, p);
        if (separate) store(params + i, p);
    });
}

// params (n) = round(master);  master, m, v (n) fp32 are updated from grads (n) fp32. With T = float,
// params may be master.
// Reads 16 bytes an element and writes 12, and sizeof(T) more unless params is master; bound by memory
// bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void adamw_update(T* params, float* master, float* m, float* v, const float* grads, size_t n,
                  const AdamWStep& step, const OptimizerState* state, stream_t stream) {
    const AdamWCoefficients c{.rate = step.rate,
                              .decay = step.decoupled ? step.weight_decay : 0.0,
                              .one_minus_beta1 = static_cast<float>(1.0 - step.beta1),
                              .beta2 = static_cast<float>(step.beta2),
                              .one_minus_beta2 = static_cast<float>(1.0 - step.beta2),
                              .eps = static_cast<float>(step.eps),
                              .l2 = static_cast<float>(step.decoupled ? 0.0 : step.weight_decay)};
    launch_elementwise<W, BesideFloats<W, T>>(
        n, stream, [](auto N) { return adamw_kernel<W, N(), T>; }, params, master, m, v, grads, n, c, state);
}
