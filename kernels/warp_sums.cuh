// warp_sums.cuh: the last stage of column sums that the warps of a block share: each warp has added up
//   its own rows, and the warps' sums are added in the order of the warps.
#pragma once
#include "kernels/common.cuh"

// Floats from row to row in shared memory; row k holds element k of every thread's vector. The rows are
// padded, so that threads access different banks both along a row and across the rows.
template <int warps, int N>
constexpr int warp_sums_pitch = simt::warp_size* warps + simt::warp_size / N;

// Floats of shared memory for for_each_warp_sum.
template <int warps, int N>
constexpr size_t warp_sums_size = static_cast<size_t>(warp_sums_pitch<warps, N>) * N;

// Calls body(column, sum) with each column's sum over all warps. Lane l holds columns l * N to
// l * N + N - 1. Neighbouring threads receive neighbouring columns, so that their stores fill whole
// 32-byte sectors; stores of 8 floats a thread would not. All threads of the block call this together.
template <int warps, int N, class Body>
__device__ __forceinline__ void for_each_warp_sum(float* shared, const Vec<float, N>& of_lane, Body body) {
    constexpr int pitch = warp_sums_pitch<warps, N>, threads = simt::warp_size * warps;
    const int thread = static_cast<int>(threadIdx.x);
    UNROLL
    for (int k = 0; k < N; k++) shared[k * pitch + thread] = of_lane[k];
    __syncthreads();
    for (int column = thread; column < simt::warp_size * N; column += threads) {
        const float* of_column = shared + column % N * pitch + column / N;
        float sum = of_column[0];
        UNROLL
        for (int warp = 1; warp < warps; warp++) sum += of_column[warp * simt::warp_size];
        body(column, sum);
    }
}
