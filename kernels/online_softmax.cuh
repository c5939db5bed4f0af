// online_softmax.cuh: the maximum and the sum of exponentials of a row, in one reading of it.
//   Milakov and Gimelshein 2018, arXiv:1805.02867
#pragma once
#include <cfloat>

#include "kernels/common.cuh"

// A thread's share of a softmax: the maximum of the logits it has seen, and the sums of exp(logit - maximum)
// in N lanes. The maximum starts finite: logits of -inf count as 0, not as NaN.
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
    // The thread's share becomes the row's: maximum, and the sum, in every thread.
    template <int Threads>
    __device__ __forceinline__ float row_sum() {
        const float of_thread = maximum;
        maximum = simt::row_max<Threads>(maximum);
        return simt::row_sum<Threads>(simt::sum(sums) * simt::quick_exp_nonpositive(of_thread - maximum));
    }
};
