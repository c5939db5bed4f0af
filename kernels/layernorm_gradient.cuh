// layernorm_gradient.cuh: the gradient of one vector, for both kernels of layernorm's backward, layernorm.cuh
#pragma once
#include "kernels/common.cuh"

// The numbers of a row that the gradient of each of its channels needs: the statistics from forward, and the
// averages over the row of dnorm and of dnorm * norm.
struct LayerNormRow {
    float mean, rstd, average, average_norm;
};

// dx += the gradient of x, for N channels of a row.
// sums += the row's part of dweight, then of dbias, then of the sum of dx, as many as Sums. RMSNorm has only
// the first, and its mean and average are 0.
template <int N, int Sums>
__device__ __forceinline__ void layernorm_gradient(Vec<float, N>& dx, Vec<float, N> (&sums)[Sums],
                                                   const Vec<float, N>& dout, const Vec<float, N>& x,
                                                   const Vec<float, N>& weight, const LayerNormRow& row) {
    UNROLL
    for (int k = 0; k < N; k++) {
        const float norm = (x[k] - row.mean) * row.rstd;
        sums[0][k] += dout[k] * norm;
        if constexpr (Sums > 1) sums[1][k] += dout[k];
        dx[k] += (dout[k] * weight[k] - row.average - norm * row.average_norm) * row.rstd;
        if constexpr (Sums > 2) sums[2][k] += dx[k];
    }
}
