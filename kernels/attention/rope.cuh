// rope.cuh: rotary position embeddings, in place on the queries and keys of packed qkv
//   Channel i of a head and channel i + HS/2 are a pair, i < HS/2. At position t it turns by the angle
//   a = t * theta^(-2i / HS):
//     x[i] = x[i] cos a - x[i + HS/2] sin a,   x[i + HS/2] = x[i + HS/2] cos a + x[i] sin a
//   The product of a turned query and a turned key depends on the distance of their positions alone.
//   Backward turns the gradient by -a.
//   With a norm (nanochat's) a turned head x also becomes y = x rstd, rstd = 1 / sqrt(average(x^2) + eps),
//   and backward turns (dy - y average(dy y)) rstd. Turning leaves the average as it is, so that the order
//   does not matter.
//   qkv, dqkv (B, T, NH + 2 NKV, HS), of which the first NH + NKV heads turn   HS even
//   rstd (B, T, NH + NKV) fp32
//   table (positions, 2, HS/2) fp32: cos a, then sin a, as transformers' LlamaRotaryEmbedding computes them
//   Su et al. 2021, arXiv:2104.09864
#pragma once
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/common.cuh"

// The table for `positions` positions; sign -1 turns the other way. In fp32 an angle at position 2047 is
// known to about 1e-4, so parity with transformers at long distances needs the same roundings: the power and
// the frequency are rounded to fp32 before that is multiplied by the position. All frequencies are then
// torch's, bit for bit.
inline std::vector<float> rope_table(int positions, int HS, double theta, int sign = 1) {
    const int half = HS / 2;
    std::vector<float> table(static_cast<size_t>(positions) * static_cast<size_t>(HS));
    for (int i = 0; i < half; i++) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(HS),
                    frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
        for (int t = 0; t < positions; t++) {
            const double angle = static_cast<double>(static_cast<float>(t) * frequency);
            float* const of_position = table.data() + static_cast<size_t>(t) * static_cast<size_t>(HS);
            of_position[i] = static_cast<float>(std::cos(angle));
            of_position[half + i] = static_cast<float>(sign * std::sin(angle));
        }
    }
    return table;
}

// The kernel of a head gets these beside qkv. direction: 1, or -1 to turn back. The first token of each
// sequence is at position *before, or 0 without it.
struct Turn {
    const float* table;
    float direction;
    const int* before;
    unsigned rows;
    float eps;
};

// Heads have no norm, or forward normalises them, or backward passes through that norm.
enum class HeadNorm { none, forward, backward };

// W::threads threads share a head. y: the turned and normalised heads of forward, for their backward.
template <class W, int N, class T, HeadNorm Norm>
__global__ void rope_kernel(T* qkv, float* rstd, const T* y, Turn turn, AttentionShape shape) {
    constexpr int threads = W::threads;
    const size_t row = simt::row_index<threads>();
    const bool exists = row < turn.rows;  // threads of a row past the last one take part in the collectives
    if (Norm == HeadNorm::none && !exists) return;
    const unsigned turned = shape.NH + shape.NKV, token = static_cast<unsigned>(row) / turned,
                   head = static_cast<unsigned>(row) % turned;
    const int half = exists ? shape.HS / 2 : 0;
    const size_t position = (turn.before ? *turn.before : 0) + token % static_cast<unsigned>(shape.T),
                 first = (static_cast<size_t>(token) * (turned + shape.NKV) + head) * shape.HS;
    T* const x = qkv + first;
    const auto for_each_pair = [&](auto body) INLINE {
        for (int i = simt::row_lane<threads>() * N; i < half; i += threads * N)
            for (int part = 0; part < 2; part++) body(i + part * half);
    };
    float factor = 1.0f, average = 0.0f;
    if constexpr (Norm != HeadNorm::none) {
        Vec<float, N> sums = simt::broadcast<N>(0.0f);
        for_each_pair([&](int i) INLINE {
            const Vec<float, N> a = load<N>(x + i),
                                b = Norm == HeadNorm::forward ? a : load<N>(y + first + i);
            UNROLL
            for (int k = 0; k < N; k++) sums[k] += a[k] * b[k];
        });
        average = simt::row_sum<threads>(simt::sum(sums)) / static_cast<float>(shape.HS);
        if (Norm == HeadNorm::forward) factor = simt::rsqrt(average + turn.eps);
        else if (exists) factor = rstd[row];
    }
    const float* const cosines = turn.table + position * shape.HS;
    for (int i = simt::row_lane<threads>() * N; i < half; i += threads * N) {
        Vec<float, N> a = load<N>(x + i), b = load<N>(x + half + i);
        const Vec<float, N> c = load<N>(cosines + i), s = load<N>(cosines + half + i);
        if constexpr (Norm == HeadNorm::backward) {
            const Vec<float, N> ya = load<N>(y + first + i), yb = load<N>(y + first + half + i);
            UNROLL
            for (int k = 0; k < N; k++) a[k] -= ya[k] * average, b[k] -= yb[k] * average;
        }
        UNROLL
        for (int k = 0; k < N; k++) {
            const float unturned = a[k] * factor, other = b[k] * factor, sine = turn.direction * s[k];
            a[k] = unturned * c[k] - other * sine;
            b[k] = other * c[k] + unturned * sine;
        }
        store(x + i, a);
        store(x + half + i, b);
    }
    if (Norm == HeadNorm::forward && exists && simt::row_lane<threads>() == 0) rstd[row] = factor;
}

template <class W, HeadNorm Norm, class T>
void turn_heads(T* qkv, float* rstd, const T* y, Turn turn, AttentionShape shape, stream_t stream) {
    CHECK(shape.B > 0 && shape.T > 0 && shape.NH > 0 && shape.NKV > 0 && shape.HS > 0 && shape.HS % 2 == 0,
          "rope: B = {}, T = {}, NH = {}, NKV = {} and HS = {} must be positive, and HS even", shape.B,
          shape.T, shape.NH, shape.NKV, shape.HS);
    const size_t rows = static_cast<size_t>(shape.B) * shape.T * (shape.NH + shape.NKV);
    CHECK(rows <= 0xffffffff, "rope: {} heads of all tokens are too many; use a smaller batch", rows);
    turn.rows = static_cast<unsigned>(rows);
    simt::for_vector_length<W, T>(shape.HS / 2, [&](auto n) {
        launch_rows<W::threads>(rope_kernel<W, n(), T, Norm>, rows, 0, stream, qkv, rstd, y, turn, shape);
    });
}

// Turns q and k of tokens that begin at position *before, or 0 without it; table has T more positions. With
// rstd they are normalised, too. Reads and writes (NH + NKV) * HS elements a token; bound by memory
// bandwidth.
template <class W = simt::NativeWidth<4>, class T>
void rope_forward(T* qkv, float* rstd, const float* table, const int* before, float eps, AttentionShape shape,
                  stream_t stream) {
    const Turn turn{table, 1.0f, before, 0, eps};
    const T* const none = nullptr;
    if (rstd) turn_heads<W, HeadNorm::forward>(qkv, rstd, none, turn, shape, stream);
    else turn_heads<W, HeadNorm::none>(qkv, rstd, none, turn, shape, stream);
}

// dqkv = the gradient of qkv before it was turned, from that of the turned qkv, which with a norm is read
// too. Bound like rope_forward.
template <class W = simt::NativeWidth<4>, class T>
void rope_backward(T* dqkv, const T* qkv, float* rstd, const float* table, AttentionShape shape,
                   stream_t stream) {
    const Turn turn{table, -1.0f, nullptr, 0, 0.0f};
    if (rstd) turn_heads<W, HeadNorm::backward>(dqkv, rstd, qkv, turn, shape, stream);
    else turn_heads<W, HeadNorm::none>(dqkv, nullptr, qkv, turn, shape, stream);
}
