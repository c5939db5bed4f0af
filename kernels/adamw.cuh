// adamw.cuh: AdamW with gradient clipping and fp32 master weights
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2,   g = the gradient times min(1, clip / (norm + 1e-6))
//   p = p (1 - lr decay) - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
//   Loshchilov and Hutter 2019, arXiv:1711.05101, as torch.optim.AdamW and torch.nn.utils.clip_grad_norm_ compute it.
//   A step whose gradient norm is not finite changes nothing, and t does not count it.
#pragma once
#include <cfloat>
#include <cmath>

#include "elementwise.cuh"

// Lives in device memory, so that no step waits for the host to look at the norm.
struct OptimizerState {
    int step;                     // t: steps that changed the parameters
    int skipped;                  // steps that did not, since the last one that did
    float grad_norm;              // of the latest step, before clipping
    float scale;                  // of its gradients; 0 if it was skipped
    float bias_correction1;       // 1 - beta1^t
    float sqrt_bias_correction2;  // sqrt(1 - beta2^t)
};

struct AdamWStep {
    double lr, beta1, beta2, eps, weight_decay;
};

// One thread's work: the whole step depends on a handful of numbers. Double precision, because 1 - beta2^t would lose digits in fp32.
template <class W>
__global__ void optimizer_prepare_kernel(OptimizerState* state, const float* norm_squared, float clip, double beta1, double beta2) {
    if (threadIdx.x > 0) return;
    const float norm = simt::sqrt(*norm_squared);
    const bool finite = norm <= FLT_MAX;
    state->grad_norm = norm;
    if (finite) state->step++;
    state->skipped = finite ? 0 : state->skipped + 1;
    const float wanted = clip / (norm + 1e-6f);
    state->scale = !finite ? 0.0f : clip > 0 && wanted < 1.0f ? wanted : 1.0f;
    const double t = state->step;
    state->bias_correction1 = static_cast<float>(1.0 - pow(beta1, t));
    state->sqrt_bias_correction2 = static_cast<float>(sqrt(1.0 - pow(beta2, t)));
}

// state = what adamw_update needs to know about this step. clip <= 0: no clipping. Once a step, before the updates.
template <class W = simt::NativeWidth<32>>
void optimizer_prepare(OptimizerState* state, const float* norm_squared, float clip, const AdamWStep& step, stream_t stream) {
    launch(optimizer_prepare_kernel<W>, 1, W::threads, 0, stream, state, norm_squared, clip, step.beta1, step.beta2);
}

// The step's numbers as the kernel uses them. 1 - beta is taken in double precision: in fp32 1 - 0.999 has lost four digits.
struct AdamWCoefficients {
    float lr, one_minus_beta1, beta2, one_minus_beta2, eps, decay_factor;
};

template <class W, int N, class T>
__global__ void adamw_kernel(T* params, float* master, float* m, float* v, const float* grads, size_t n, AdamWCoefficients c,
                             const OptimizerState* state) {
    const float scale = state->scale;
    if (scale == 0.0f) return;
    const float step_size = c.lr / state->bias_correction1, inverse_sqrt = 1.0f / state->sqrt_bias_correction2;
    const bool separate = static_cast<const void*>(params) != static_cast<const void*>(master);
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        const Vec<float, M> g = load_streaming<M>(grads + i);
        Vec<float, M> p = load_streaming<M>(master + i), mean = load_streaming<M>(m + i), square = load_streaming<M>(v + i);
        UNROLL
        for (int k = 0; k < M; k++) {
            const float gradient = g[k] * scale;
            mean[k] += c.one_minus_beta1 * (gradient - mean[k]);
            square[k] = c.beta2 * square[k] + c.one_minus_beta2 * gradient * gradient;
            p[k] = p[k] * c.decay_factor - step_size * mean[k] / (simt::sqrt(square[k]) * inverse_sqrt + c.eps);
        }
        store_streaming(m + i, mean);
        store_streaming(v + i, square);
        store_streaming(master + i, p);
        if (separate) store(params + i, p);
    });
}

// params (n) = round(master);  master, m, v (n) fp32 are updated from grads (n) fp32. For T = float, params may be master.
// Reads 16 and writes 12 + sizeof(T) bytes an element; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void adamw_update(T* params, float* master, float* m, float* v, const float* grads, size_t n, const AdamWStep& step, const OptimizerState* state,
                  stream_t stream) {
    const AdamWCoefficients c{.lr = static_cast<float>(step.lr),
                              .one_minus_beta1 = static_cast<float>(1.0 - step.beta1),
                              .beta2 = static_cast<float>(step.beta2),
                              .one_minus_beta2 = static_cast<float>(1.0 - step.beta2),
                              .eps = static_cast<float>(step.eps),
                              .decay_factor = static_cast<float>(1.0 - step.lr * step.weight_decay)};
    launch_elementwise<W, T>(
        n, stream, [](auto N) { return adamw_kernel<W, N(), T>; }, params, master, m, v, grads, n, c, state);
}
