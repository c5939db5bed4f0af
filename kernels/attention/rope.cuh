// rope.cuh: rotary position embeddings, in place on the queries and keys of packed qkv
//   Channel i of a head and channel i + HS/2 are a pair, i < HS/2. At position t it turns by the angle
//   a = t * theta^(-2i / HS):
//     x[i] = x[i] cos a - x[i + HS/2] sin a,   x[i + HS/2] = x[i + HS/2] cos a + x[i] sin a
//   The product of a turned query and a turned key depends on the distance of their positions alone.
//   Backward turns the gradient by -a.
//   qkv, dqkv (B, T, NH + 2 NKV, HS), of which the first NH + NKV heads turn   HS even
//   table (positions, 2, HS/2) fp32: cos a, then sin a, as transformers' LlamaRotaryEmbedding computes them
//   Su et al. 2021, arXiv:2104.09864
#pragma once
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/common.cuh"

// The table for `positions` positions. In fp32 an angle at position 2047 is known to about 1e-4, so parity
// with transformers at long distances needs the same roundings: the power and the frequency are rounded to
// fp32 before that is multiplied by the position. All frequencies are then torch's, bit for bit.
inline std::vector<float> rope_table(int positions, int HS, double theta) {
    const int half = HS / 2;
    std::vector<float> table(static_cast<size_t>(positions) * static_cast<size_t>(HS));
    for (int i = 0; i < half; i++) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(HS),
                    frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
        for (int t = 0; t < positions; t++) {
            const double angle = static_cast<double>(static_cast<float>(t) * frequency);
            float* const of_position = table.data() + static_cast<size_t>(t) * static_cast<size_t>(HS);
            of_position[i] = static_cast<float>(std::cos(angle));
            of_position[half + i] = static_cast<float>(std::sin(angle));
        }
    }
    return table;
}

// W::threads threads share a head. direction: 1, or -1 to turn back. The first token of each sequence is at
// position `first`.
template <class W, int N, class T>
__global__ void rope_kernel(T* qkv, const float* table, float direction, const int* before, unsigned rows,
                            AttentionShape shape) {
    const size_t row = simt::row_index<W::threads>();
    if (row >= rows) return;
    const unsigned turned = shape.NH + shape.NKV, token = static_cast<unsigned>(row) / turned,
                   head = static_cast<unsigned>(row) % turned;
    const int half = shape.HS / 2;
    const size_t position = (before ? *before : 0) + token % static_cast<unsigned>(shape.T);
    T* const x = qkv + (static_cast<size_t>(token) * (turned + shape.NKV) + head) * shape.HS;
    const float* const cosines = table + position * shape.HS;
    for (int i = simt::row_lane<W::threads>() * N; i < half; i += W::threads * N) {
        Vec<float, N> a = load<N>(x + i), b = load<N>(x + half + i);
        const Vec<float, N> c = load<N>(cosines + i), s = load<N>(cosines + half + i);
        UNROLL
        for (int k = 0; k < N; k++) {
            const float unturned = a[k], sine = direction * s[k];
            a[k] = unturned * c[k] - b[k] * sine;
            b[k] = b[k] * c[k] + unturned * sine;
        }
        store(x + i, a);
        store(x + half + i, b);
    }
}

template <class W, class T>
void turn_heads(T* qkv, const float* table, float direction, const int* before, AttentionShape shape,
                stream_t stream) {
    CHECK(shape.B > 0 && shape.T > 0 && shape.NH > 0 && shape.NKV > 0 && shape.HS > 0 && shape.HS % 2 == 0,
          "rope: B = {}, T = {}, NH = {}, NKV = {} and HS = {} must be positive, and HS even", shape.B,
          shape.T, shape.NH, shape.NKV, shape.HS);
    const size_t rows = static_cast<size_t>(shape.B) * shape.T * (shape.NH + shape.NKV);
    CHECK(rows <= 0xffffffff, "rope: {} heads of all tokens are too many; use a smaller batch", rows);
    simt::for_vector_length<W, T>(shape.HS / 2, [&](auto n) {
        launch_rows<W::threads>(rope_kernel<W, n(), T>, rows, 0, stream, qkv, table, direction, before,
                                static_cast<unsigned>(rows), shape);
    });
}

// Turns q and k of tokens that begin at position *before, or 0 without it; table has T more positions.
// Reads and writes (NH + NKV) * HS elements a token; bound by memory bandwidth.
template <class W = simt::NativeWidth<4>, class T>
void rope_forward(T* qkv, const float* table, const int* before, AttentionShape shape, stream_t stream) {
    turn_heads<W>(qkv, table, 1.0f, before, shape, stream);
}

// dqkv = the gradient of qkv before it was turned, from that of the turned qkv. Bound like rope_forward.
template <class W = simt::NativeWidth<4>, class T>
void rope_backward(T* dqkv, const float* table, AttentionShape shape, stream_t stream) {
    turn_heads<W>(dqkv, table, -1.0f, nullptr, shape, stream);
}
