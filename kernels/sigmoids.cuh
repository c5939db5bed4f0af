// sigmoids.cuh: sigmoid(z) and 1 - sigmoid(z)
#pragma once
#include "kernels/common.cuh"

// Both follow from e = exp(-|z|) without cancellation, and nothing overflows.
struct Sigmoids {
    float value, rest;
    __device__ __forceinline__ explicit Sigmoids(float z) {
        const float e = simt::quick_exp_nonpositive(-fabsf(z)), inverse = simt::quick_divide(1.0f, 1.0f + e);
        value = z < 0.0f ? e * inverse : inverse;
        rest = z < 0.0f ? inverse : e * inverse;
    }
};
