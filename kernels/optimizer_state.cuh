// optimizer_state.cuh: what every optimizer's kernels share: the step's count, its gradient norm and what its
// gradients are scaled by
//   scale = gradient_weight * min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ computes it; 0
//   for a step that must change nothing. norm is that of the gradients times gradient_weight.
//   A step whose gradient norm is not finite changes nothing, and the count of steps does not see it.
#pragma once
#include <cfloat>
#include <cmath>

#include "kernels/common.cuh"

// Lives in device memory, so that no step waits for the host to look at the norm, and every step launches the
// same kernels with the same arguments.
struct OptimizerState {
    double lr;  // the step's learning rate; the host writes these two
    // tokens of a step over its targets that count: gradients come divided by the former
    double gradient_weight = 1;
    int step;                     // t: steps that changed the parameters
    float grad_norm;              // of the latest step, before clipping
    float scale;                  // of its gradients; 0 if it was skipped
    float bias_correction1;       // 1 - beta1^t
    float sqrt_bias_correction2;  // sqrt(1 - beta2^t)
};

// One thread's work: the whole step depends on a handful of numbers. Double precision, because 1 - beta2^t
// would lose digits in fp32.
template <class W>
__global__ void optimizer_prepare_kernel(OptimizerState* state, const float* norm_squared, float clip,
                                         double beta1, double beta2) {
    if (threadIdx.x > 0) return;
    const float weight = static_cast<float>(state->gradient_weight),
                norm = weight * simt::sqrt(*norm_squared);
    const bool finite = norm <= FLT_MAX;
    state->grad_norm = norm;
    if (finite) state->step++;
    const float wanted = clip / (norm + 1e-6f);
    state->scale = !finite ? 0.0f : clip > 0 && wanted < 1.0f ? weight * wanted : weight;
    const double t = state->step;
    state->bias_correction1 = static_cast<float>(1.0 - pow(beta1, t));
    state->sqrt_bias_correction2 = static_cast<float>(sqrt(1.0 - pow(beta2, t)));
}

// state = what the updates need to know about this step. clip <= 0: no clipping. beta1, beta2: Adam's, for
// its bias corrections.
// Once a step, before the updates.
template <class W = simt::NativeWidth<32>>
void optimizer_prepare(OptimizerState* state, const float* norm_squared, float clip, double beta1,
                       double beta2, stream_t stream) {
    launch(optimizer_prepare_kernel<W>, 1, W::threads, 0, stream, state, norm_squared, clip, beta1, beta2);
}
