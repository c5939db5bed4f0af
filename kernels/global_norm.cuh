// global_norm.cuh: out = sum of grads[i]^2, the squared Euclidean norm of the gradients
//   grads (n) fp32   out (1) fp32. A gradient that is inf or NaN makes the result inf or NaN.
//   The gradients are clipped by this norm (optimizer_state.cuh).
#pragma once
#include "kernels/common.cuh"
#include "kernels/simt/products.cuh"

// Values that one block adds up. The pieces depend on n alone, so the order of the additions is always
// the same.
constexpr size_t global_norm_piece = 32768;

// Floats of scratch for global_norm_squared: one of each piece.
inline size_t global_norm_scratch(size_t n) { return ceil_div(n, global_norm_piece); }

// partial (pieces) = each piece's sum of squares
template <class W, int N>
__global__ void __launch_bounds__(simt::block_of<W>)
    global_norm_kernel(float* partial, const float* grads, size_t n) {
    const size_t begin = blockIdx.x * global_norm_piece,
                 end = n < begin + global_norm_piece ? n : begin + global_norm_piece;
    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    size_t i = begin + threadIdx.x * N;
    for (; i + N <= end; i += W::threads * N) {
        // Two cores of a Xeon read 29 GB/s this way, and 19 with sums that g++ 12 keeps in memory.
        simt::prefetch_ahead<N>(grads + i);
        const Vec<float, N> g = simt::load_factors<N>(grads + i);
        simt::multiply_add(sums, g, g);
    }
    for (; i < end; i++) sums[0] += grads[i] * grads[i];
    const float sum = simt::row_sum<W::threads>(simt::sum(sums));
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class W>
__global__ void __launch_bounds__(simt::block_of<W>)
    global_norm_finish_kernel(float* out, const float* partial, size_t pieces) {
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < pieces; i += W::threads) sum += partial[i];
    const float total = simt::row_sum<W::threads>(static_cast<float>(sum));
    if (threadIdx.x == 0) *out = total;
}

// out (1) = sum of grads^2. Reads n values; bound by memory bandwidth.
template <class W = simt::NativeWidth<512>>
void global_norm_squared(float* out, float* scratch, const float* grads, size_t n, stream_t stream) {
    CHECK(n > 0, "global norm: n = {} must be positive", n);
    // CPU: four registers of sums, so that an addition need not wait for the one before
    constexpr int N = W::threads == 1 ? 64 : 4;
    const size_t pieces = global_norm_scratch(n);
    launch(global_norm_kernel<W, N>, static_cast<unsigned>(pieces), W::threads, 0, stream, scratch, grads, n);
    launch(global_norm_finish_kernel<W>, 1, W::threads, 0, stream, out, scratch, pieces);
}
