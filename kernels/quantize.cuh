// quantize.cuh: a matrix as int8 with one scale for each row (output channel)
//   quantized = round(weight / scale),   scale = max |weight| of the row / 127
//   weight (OC, C) fp32   quantized (OC, C) int8, -127 to 127, rounded to nearest even
//   scales (OC) fp32: 0 for a row of zeros, NaN for a row with a weight that is not finite
//   A row of weights below 1e-36 becomes zeros.
//   Quantization is symmetric: a product needs no correction for a zero point, and the scale can be
//   taken out of the sum.
//   Dettmers et al. 2022, arXiv:2208.07339 (vector-wise quantization)
#pragma once
#include "kernels/common.cuh"

// W::threads threads share a row.
template <class W, int N>
__global__ void quantize_kernel(int8_t* quantized, float* scales, const float* weight, size_t rows, int C) {
    const size_t row = simt::row_index<W::threads>();
    const int lane = simt::row_lane<W::threads>(), end = row < rows ? C : 0;
    Vec<float, N> highest = simt::broadcast<N>(0.0f);
    // sums of 0 * weight: NaN if a weight is not finite, which the maximum would not show
    Vec<float, N> nothing = highest;
    for (int i = lane * N; i < end; i += W::threads * N) {
        const Vec<float, N> v = load<N>(weight + row * C + i);
        UNROLL
        for (int k = 0; k < N; k++) {
            nothing[k] += 0.0f * v[k];
            highest[k] = simt::larger(fabsf(v[k]), highest[k]);
        }
    }
    const float largest = simt::row_max<W::threads>(simt::max(highest));
    const bool finite = simt::row_sum<W::threads>(simt::sum(nothing)) == 0.0f;
    const float inverse = largest > 0x1p-119f ? 127.0f / largest : 0.0f;
    for (int i = lane * N; i < end; i += W::threads * N) {
        const Vec<float, N> v = load<N>(weight + row * C + i);
        // in two loops, because g++ would convert one float at a time to int8
        Vec<int, N> nearest;
        UNROLL
        for (int k = 0; k < N; k++) nearest[k] = finite ? static_cast<int>(rintf(v[k] * inverse)) : 0;
        Vec<int8_t, N> q;
        UNROLL
        for (int k = 0; k < N; k++) q[k] = static_cast<int8_t>(nearest[k]);
        store_raw(quantized + row * C + i, q);
    }
    if (row < rows && lane == 0) scales[row] = finite ? largest / 127.0f : NAN;
}

template <class W, int N, class T>
__global__ void dequantize_kernel(T* out, const int8_t* quantized, const float* scales, size_t rows, int C) {
    const size_t row = simt::row_index<W::threads>();
    if (row >= rows) return;
    const float scale = scales[row];
    for (int i = simt::row_lane<W::threads>() * N; i < C; i += W::threads * N) {
        Vec<float, N> v = load<N>(quantized + row * C + i);
        UNROLL
        for (int k = 0; k < N; k++) v[k] *= scale;
        store(out + row * C + i, v);
    }
}

// Reads OC * C floats and writes as many bytes; bound by memory bandwidth. A weight that is not finite
// makes the whole row NaN.
template <class W = simt::NativeWidth<32>>
void quantize(int8_t* quantized, float* scales, const float* weight, size_t OC, int C, stream_t stream) {
    CHECK(OC > 0 && C > 0, "quantize: OC = {} and C = {} must be positive", OC, C);
    simt::for_vector_length<W, float>(C, [&](auto n) {
        launch_rows<W::threads>(quantize_kernel<W, n()>, OC, 0, stream, quantized, scales, weight, OC, C);
    });
}

// out (OC, C) = quantized * scales. Reads OC * C bytes and writes as many elements; bound by memory
// bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void dequantize(T* out, const int8_t* quantized, const float* scales, size_t OC, int C, stream_t stream) {
    CHECK(OC > 0 && C > 0, "dequantize: OC = {} and C = {} must be positive", OC, C);
    simt::for_vector_length<W, float>(C, [&](auto n) {
        launch_rows<W::threads>(dequantize_kernel<W, n(), T>, OC, 0, stream, out, quantized, scales, OC, C);
    });
}
