// layernorm_gradient.cuh: the gradient of a channel, for both kernels of layernorm's backward (layernorm.cuh)
#pragma once
#include "kernels/common.cuh"

// The numbers of a row that the gradient of each of its channels needs: the statistics from forward, and the
// averages over the row of dnorm and of dnorm * norm.
struct LayerNormRow {
    float mean, rstd, average, average_norm;
};

// dx += the gradient of x, for channel k of a vector; norm = (x - mean) * rstd, and dnorm = dout * weight.
// sums += the row's part of dweight, then of dbias, then of the sum of dx, as many as Sums. RMSNorm has only
// the first, and its mean and average are 0.
template <int N, int Sums>
__device__ __forceinline__ void layernorm_gradient(float& dx, Vec<float, N> (&sums)[Sums], int k, float dout,
                                                   float norm, float dnorm, const LayerNormRow& row) {
    sums[0][k] += dout * norm;
    if constexpr (Sums > 1) sums[1][k] += dout;
    dx += (dnorm - row.average - norm * row.average_norm) * row.rstd;
    if constexpr (Sums > 2) sums[2][k] += dx;
}
