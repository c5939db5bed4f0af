// optimizer_state.cuh: what the kernels of all optimizers share: the count of steps and the factor for the
//   gradients
//   grad_norm = gradient_weight * the Euclidean norm of the gradients (global_norm.cuh)
//   scale = gradient_weight * min(1, clip / (grad_norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it
//   A step whose norm is not finite has scale = 0: it changes nothing and is not counted.
//   Pascanu et al. 2013, arXiv:1211.5063
#pragma once
#include <cfloat>
#include <cmath>

#include "kernels/common.cuh"

// Lives in device memory: the host need not wait for the norm, and every step launches the same kernels
// with the same arguments.
struct OptimizerState {
    double lr;  // learning rate of the step; the host writes this and gradient_weight
    // (tokens of the step) / (targets that count): the gradients have been divided by the number of tokens
    double gradient_weight = 1;
    int step;                     // t: number of steps that changed the parameters
    float scale;                  // factor for the step's gradients; 0 if the step was skipped
    float bias_correction1;       // 1 - beta1^t
    float sqrt_bias_correction2;  // sqrt(1 - beta2^t)
};

// One thread computes these few numbers. Double precision, because 1 - beta2^t would lose digits in fp32.
template <class W>
__global__ void optimizer_prepare_kernel(OptimizerState* state, const float* norm_squared, float clip,
                                         double beta1, double beta2) {
    if (threadIdx.x > 0) return;
    const float weight = static_cast<float>(state->gradient_weight),
                grad_norm = weight * simt::sqrt(*norm_squared);
    const bool finite = grad_norm <= FLT_MAX;
    if (finite) state->step++;
    const float wanted = clip / (grad_norm + 1e-6f);
    state->scale = !finite ? 0.0f : clip > 0 && wanted < 1.0f ? weight * wanted : weight;
    const double t = state->step;
    state->bias_correction1 = static_cast<float>(1.0 - pow(beta1, t));
    state->sqrt_bias_correction2 = static_cast<float>(sqrt(1.0 - pow(beta2, t)));
}

// Fills in the state for this step; runs once a step, before the updates. clip <= 0: no clipping. beta1
// and beta2 are Adam's, for its bias corrections.
template <class W = simt::NativeWidth<32>>
void optimizer_prepare(OptimizerState* state, const float* norm_squared, float clip, double beta1,
                       double beta2, stream_t stream) {
    launch(optimizer_prepare_kernel<W>, 1, W::threads, 0, stream, state, norm_squared, clip, beta1, beta2);
}
