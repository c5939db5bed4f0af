// collectives.cuh: sums and maxima over the threads that share a row; each of these threads gets the result
//   A warp adds in a butterfly (distance 16, 8, 4, 2, 1); a block adds its warps' sums in the same
//   butterfly.
//   On the CPU the threads meet once, and the last to arrive adds all values in the GPU's order, so the
//   bits are the same.
//   A block's collectives are also barriers. A warp's are not: before other lanes read what a lane wrote
//   to shared memory, __syncwarp() is needed.
//   block_sums adds K values of every thread, each in block_sum's order, with the barriers of one
//   collective.
#pragma once
#include "kernels/simt/target.h"

namespace simt {

struct Sum {
    static constexpr float identity = 0.0f;
    static constexpr const char *name_of_warp = "warp_sum", *name_of_block = "block_sum";
    __device__ float operator()(float a, float b) const { return a + b; }
};
// A NaN is ignored and +0 counts as larger than -0, so that the order of a and b does not matter.
struct Max {
    static constexpr float identity = -INFINITY;
    static constexpr const char *name_of_warp = "warp_max", *name_of_block = "block_max";
    __device__ float operator()(float a, float b) const {
#ifdef __CUDACC__
        return fmaxf(a, b);
#else
        if (a == b) return std::signbit(a) ? b : a;
        return a > b || b != b ? a : b;
#endif
    }
};

#ifdef __CUDACC__
template <int W = warp_size, class Op>
__device__ float warp_reduce(float value, Op op, Here = Here::now()) {
    UNROLL
    for (int distance = W / 2; distance > 0; distance /= 2)
        value = op(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}
template <class Op>
__device__ float block_reduce(float value, Op op, Here = Here::now()) {
    __shared__ float of_warp[warp_size];
    value = warp_reduce(value, op);
    __syncthreads();  // every thread has read the results of the collective before
    if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = value;
    __syncthreads();
    return warp_reduce(
        threadIdx.x % warp_size < blockDim.x / warp_size ? of_warp[threadIdx.x % warp_size] : Op::identity,
        op);
}
template <int K>
__device__ void block_sums(float (&values)[K], Here = Here::now()) {
    __shared__ float of_warp[K][warp_size];
    const unsigned warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    UNROLL
    for (int k = 0; k < K; k++) values[k] = warp_reduce(values[k], Sum{});
    __syncthreads();  // every thread has read the results of the collective before
    UNROLL
    for (int k = 0; k < K; k++) {
        if (lane == 0) of_warp[k][warp] = values[k];
    }
    __syncthreads();
    UNROLL
    for (int k = 0; k < K; k++)
        values[k] = warp_reduce(lane < blockDim.x / warp_size ? of_warp[k][lane] : 0.0f, Sum{});
}
#else
namespace detail {
// Works in place on the 32 values of a warp; every group of W lanes gets its own result.
template <int W, class Op>
void butterfly(float* values, unsigned) {
    float next[warp_size];
    for (int distance = W / 2; distance > 0; distance /= 2) {
        for (int lane = 0; lane < warp_size; lane++) next[lane] = Op{}(values[lane], values[lane ^ distance]);
        std::copy(next, next + warp_size, values);
    }
}
template <class Op>
void butterfly_of_butterflies(float* values, unsigned threads) {
    float of_warp[warp_size];
    std::fill(of_warp, of_warp + warp_size, Op::identity);
    for (unsigned warp = 0; warp < threads / warp_size; warp++) {
        butterfly<warp_size, Op>(values + warp * warp_size, warp_size);
        of_warp[warp] = values[warp * warp_size];
    }
    butterfly<warp_size, Op>(of_warp, warp_size);
    std::fill(values, values + threads, of_warp[0]);
}
}  // namespace detail

template <int W = warp_size, class Op>
float warp_reduce(float value, Op, Here here = Here::now()) {
    return cpu::warp_combine(value, detail::butterfly<W, Op>, {Op::name_of_warp, here});
}
template <class Op>
float block_reduce(float value, Op, Here here = Here::now()) {
    return cpu::block_combine(value, detail::butterfly_of_butterflies<Op>, {Op::name_of_block, here});
}
template <int K>
void block_sums(float (&values)[K], Here here = Here::now()) {
    for (float& value : values) value = block_reduce(value, Sum{}, here);
}
#endif

__device__ inline float warp_sum(float value, Here here = Here::now()) {
    return warp_reduce(value, Sum{}, here);
}
__device__ inline float warp_max(float value, Here here = Here::now()) {
    return warp_reduce(value, Max{}, here);
}
__device__ inline float block_sum(float value, Here here = Here::now()) {
    return block_reduce(value, Sum{}, here);
}
__device__ inline float block_max(float value, Here here = Here::now()) {
    return block_reduce(value, Max{}, here);
}

// Reduces over the W threads that share a row: one thread, W neighbours in a warp (W is a power of two,
// and the whole warp calls this), or a block of W threads.
template <int W, class Op>
__device__ float row_reduce(float value, Op op, Here here = Here::now()) {
    static_assert(W % warp_size == 0 || (W < warp_size && (W & (W - 1)) == 0),
                  "a row is shared by a power of two of threads, a warp or a block");
    if constexpr (W == 1) {
        return value;
    } else if constexpr (W <= warp_size) {
        return warp_reduce<W>(value, op, here);
    } else {
#ifndef __CUDACC__
        if (blockDim.x != W) cpu::refuse_block(W, {Op::name_of_block, here});
#endif
        return block_reduce(value, op, here);
    }
}
template <int W>
__device__ float row_sum(float value, Here here = Here::now()) {
    return row_reduce<W>(value, Sum{}, here);
}
template <int W>
__device__ float row_max(float value, Here here = Here::now()) {
    return row_reduce<W>(value, Max{}, here);
}

// The row of this thread, and its index among the W threads that share the row. For kernels started by
// launch_rows.
template <int W>
__device__ size_t row_index() {
    return (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) / W;
}
template <int W>
__device__ int row_lane() {
    return threadIdx.x % W;
}

// A barrier for the threads that share a row; afterwards they see each other's writes to shared memory.
template <int W>
__device__ void row_barrier([[maybe_unused]] Here here = Here::now()) {
#ifdef __CUDACC__
    if constexpr (W > 1 && W <= warp_size) __syncwarp();
    else if constexpr (W > warp_size) __syncthreads();
#else
    if constexpr (W > 1 && W <= warp_size) __syncwarp(here);
    else if constexpr (W > warp_size) __syncthreads(here);
#endif
}

}  // namespace simt
