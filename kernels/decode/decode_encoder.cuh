// decode_encoder.cuh: out[r] = scale * wte[tokens[r]] + wpe[position], embeddings while text is generated
//   tokens (rows)   wte (V, C)   wpe (maxT, C)   out (rows, C)
//   An int8 wte has scales (V) fp32 (quantize.cuh); otherwise scales is nullptr and scale is 1. wpe may be
//   nullptr, for none.
//   The rows are the tokens of one sequence, at positions *before + r, or one token of every sample, at
//   position *before, which is a number in the device's memory (decode_attention.cuh).
#pragma once
#include "kernels/common.cuh"

// W::threads threads share a row.
template <class W, int N, class T, class Weight>
__global__ void decode_encoder_kernel(T* out, const int* tokens, const Weight* wte, const float* scales,
                                      const T* wpe, const int* before, size_t rows, int C, bool sequence) {
    const size_t row = simt::row_index<W::threads>();
    if (row >= rows) return;
    const size_t token = static_cast<size_t>(tokens[row]),
                 position = static_cast<size_t>(*before) + (sequence ? row : 0);
    const float scale = scales ? scales[token] : 1.0f;
    for (int i = simt::row_lane<W::threads>() * N; i < C; i += W::threads * N) {
        const Vec<float, N> q = load<N>(wte + token * C + i);
        Vec<float, N> v = wpe ? load<N>(wpe + position * C + i) : simt::broadcast<N>(0.0f);
        UNROLL
        for (int k = 0; k < N; k++) v[k] += q[k] * scale;
        store(out + row * C + i, v);
    }
}

// Reads and writes rows * C elements. 0 <= token < V.
template <class W = simt::NativeWidth<32>, class T, class Weight>
void decode_encoder(T* out, const int* tokens, const Weight* wte, const float* scales, const T* wpe,
                    const int* before, size_t rows, int C, bool sequence, stream_t stream) {
    CHECK(rows > 0 && C > 0, "decode_encoder: rows = {} and C = {} must be positive", rows, C);
    simt::for_vector_length<W, T>(C, [&](auto n) {
        launch_rows<W::threads>(decode_encoder_kernel<W, n(), T, Weight>, rows, 0, stream, out, tokens, wte,
                                scales, wpe, before, rows, C, sequence);
    });
}
