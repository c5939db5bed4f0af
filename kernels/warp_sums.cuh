// warp_sums.cuh: the last stage of a sum that the warps of a block share: each has added up rows of its own,
//   and their sums are added in the order of the warps.
#pragma once
#include "kernels/common.cuh"

// Floats from row to row in shared memory, where element k of every thread's vector is row k. The rows are
// padded, so that threads find different banks both along a row and across the rows.
template <int warps, int N>
constexpr int warp_sums_pitch = simt::warp_size* warps + simt::warp_size / N;

// Floats of shared memory that for_each_warp_sum needs.
template <int warps, int N>
constexpr size_t warp_sums_size = static_cast<size_t>(warp_sums_pitch<warps, N>) * N;

// Calls body(column, sum) with the sums over all warps. Lane l has columns l * N to l * N + N - 1.
// Neighbouring threads get neighbouring columns, so that their stores fill whole 32-byte sectors; stores of 8
// floats a thread would not. All threads of the block call it together.
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
