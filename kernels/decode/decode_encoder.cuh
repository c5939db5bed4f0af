// decode_encoder.cuh: out[r] = scales[tokens[r]] * wte[tokens[r]] + wpe[r], embeddings from an int8 wte
//   tokens (rows)   wte (V, C) int8   scales (V) fp32 (quantize.cuh)   out (rows, C)
//   Row r of wpe begins at wpe + r * wpe_stride. wpe_stride is C for the tokens of one sequence, and 0
//   for one token of every sample.
//   encoder.cuh does the same with a wte of type T.
#pragma once
#include "kernels/common.cuh"

// W::threads threads share a row.
template <class W, int N, class T>
__global__ void decode_encoder_kernel(T* out, const int* tokens, const int8_t* wte, const float* scales,
                                      const T* wpe, size_t rows, int C, size_t wpe_stride) {
    const size_t row = simt::row_index<W::threads>();
    if (row >= rows) return;
    const size_t token = static_cast<size_t>(tokens[row]);
    const float scale = scales[token];
    for (int i = simt::row_lane<W::threads>() * N; i < C; i += W::threads * N) {
        const Vec<float, N> q = load<N>(wte + token * C + i);
        Vec<float, N> v = load<N>(wpe + row * wpe_stride + i);
        UNROLL
        for (int k = 0; k < N; k++) v[k] += q[k] * scale;
        store(out + row * C + i, v);
    }
}

// Reads and writes rows * C elements. 0 <= token < V.
template <class W = simt::NativeWidth<32>, class T>
void decode_encoder(T* out, const int* tokens, const int8_t* wte, const float* scales, const T* wpe,
                    size_t rows, int C, size_t wpe_stride, stream_t stream) {
    CHECK(rows > 0 && C > 0, "decode_encoder: rows = {} and C = {} must be positive", rows, C);
    simt::for_vector_length<W, T>(C, [&](auto n) {
        launch_rows<W::threads>(decode_encoder_kernel<W, n(), T>, rows, 0, stream, out, tokens, wte, scales,
                                wpe, rows, C, wpe_stride);
    });
}
