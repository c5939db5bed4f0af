// online_softmax.cuh: the maximum and the sum of exponentials of a row, in one pass over it
//   Milakov and Gimelshein 2018, arXiv:1805.02867
#pragma once
#include <cfloat>

#include "kernels/common.cuh"

// A thread's share of a softmax: the maximum of the logits so far, and the sums of exp(logit - maximum) in N
// lanes. The maximum starts finite, so that the exponential of a logit of -inf is 0 and not NaN.
template <int N>
struct OnlineSoftmax {
    float maximum = -FLT_MAX;
    Vec<float, N> sums = simt::broadcast<N>(0.0f);

    __device__ __forceinline__ void raise_maximum(float candidate) {
        if (!(candidate > maximum)) return;
        const float factor = simt::quick_exp_nonpositive(maximum - candidate);
        UNROLL
        for (int k = 0; k < N; k++) sums[k] *= factor;
        maximum = candidate;
    }
    __device__ __forceinline__ void add(float logit) {
        raise_maximum(logit);
        sums[0] += simt::quick_exp_nonpositive(logit - maximum);
    }
    // Returns the sum of the whole row and sets `maximum` to the row's, in every thread that shares it.
    template <int Threads>
    __device__ __forceinline__ float row_sum() {
        const float of_thread = maximum;
        maximum = simt::row_max<Threads>(maximum);
        return simt::row_sum<Threads>(simt::sum(sums) * simt::quick_exp_nonpositive(of_thread - maximum));
    }
};
