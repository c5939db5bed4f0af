// rope.cuh: rotary position embeddings, in place on the queries and keys of packed qkv
//   Channel i of a head and channel i + HS/2 are a pair, i < HS/2. At position t it turns by the angle
//   a = t * theta^(-2i / HS):
//     x[i] = x[i] cos a - x[i + HS/2] sin a,   x[i + HS/2] = x[i + HS/2] cos a + x[i] sin a
//   The product of a turned query and a turned key depends on the distance of their positions alone.
//   Backward turns the gradient by -a.
//   With a norm a head is also divided: n = x rstd, rstd = 1 / sqrt(average(x^2) + eps). Turning leaves the
//   average as it is, so that the norm may come first or last.
//     nanochat's y = turned(n):        dx = turned back((dy - y average(dy y)) rstd)
//     Qwen3's y = turned(n weight), with d = dy turned back and g = d weight:
//                                      dx = (g - n average(g n)) rstd,   dweight = sum over all heads of d n
//   qkv, dqkv (B, T, NH + 2 NKV, HS), of which the first NH + NKV heads turn   HS even, up to 128
//   rstd (B, T, NH + NKV) fp32   x (B, T, NH + NKV, HS), kept for Qwen3's backward
//   table (positions, 2, HS/2) fp32: cos a, then sin a, as transformers' LlamaRotaryEmbedding computes them
//   Su et al. 2021, arXiv:2104.09864
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/add_rows.cuh"
#include "kernels/attention/attention.h"

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

// A thread's channels of a head that W::threads threads share: vectors of its first half, and their partners.
template <class W, int N>
struct HeadPart {
    static constexpr int vectors = ceil_div(64, W::threads* N);
    Vec<float, N> x[2][vectors];
    int half;  // channels of half a head; 0: there is none

    // Calls body(v, i) for the vectors at channels i of the first half.
    template <class Body>
    __device__ __forceinline__ void for_each(Body body) const {
        int i = simt::row_lane<W::threads>() * N;
        UNROLL
        for (int v = 0; v < vectors; v++, i += W::threads * N) {
            if (i < half) body(v, i);
        }
    }
    template <class T>
    __device__ __forceinline__ HeadPart(const T* from, int HS) : x{}, half(HS / 2) {
        for_each([&](int v, int i)
                     INLINE { x[0][v] = load<N>(from + i), x[1][v] = load<N>(from + half + i); });
    }
    template <class T>
    __device__ __forceinline__ void store_to(T* to) const {
        for_each([&](int v, int i) INLINE { store(to + i, x[0][v]), store(to + half + i, x[1][v]); });
    }
    // Calls body(k, channel, others' channel...) for every channel; k is its place in its vector.
    template <class Body, class... Others>
    __device__ __forceinline__ void each(Body body, const Others&... others) {
        for_each([&](int v, int) INLINE {
            UNROLL
            for (int part = 0; part < 2; part++) {
                UNROLL
                for (int k = 0; k < N; k++) body(k, x[part][v][k], others.x[part][v][k]...);
            }
        });
    }
    // The average of the products with the other's channels; the whole head's, for each of its threads.
    __device__ __forceinline__ float average(const HeadPart& other, int HS) {
        Vec<float, N> sums = simt::broadcast<N>(0.0f);
        each([&](int k, float a, float b) INLINE { sums[k] += a * b; }, other);
        return simt::row_sum<W::threads>(simt::sum(sums)) / static_cast<float>(HS);
    }
    __device__ __forceinline__ void turn(const float* cosines, float direction) {
        for_each([&](int v, int i) INLINE {
            const Vec<float, N> c = load<N>(cosines + i), s = load<N>(cosines + half + i), a = x[0][v],
                                b = x[1][v];
            UNROLL
            for (int k = 0; k < N; k++) {
                x[0][v][k] = a[k] * c[k] - b[k] * (direction * s[k]);
                x[1][v][k] = b[k] * c[k] + a[k] * (direction * s[k]);
            }
        });
    }
};

// The first token of each sequence is at position *before, or 0 without it. direction: 1, or -1 to turn back.
struct Turn {
    const float* table;
    float direction = 1.0f;
    const int* before = nullptr;
};

// rstd and all that follows is null without a norm. q and k, the weights (HS) of q's and of k's heads, are
// null in nanochat. y: the heads that forward has written, for nanochat's backward. x: forward writes them
// for Qwen3's.
template <class T>
struct HeadNorms {
    float eps, *rstd = nullptr;
    const T *q = nullptr, *k = nullptr, *y = nullptr;
    T* x = nullptr;
};

enum class HeadNorm { none, forward, backward, weighted };

template <class W, int N, class T, HeadNorm Norm>
__global__ void rope_kernel(T* qkv, HeadNorms<T> norms, Turn turn, AttentionShape shape, unsigned rows) {
    const size_t row = simt::row_index<W::threads>();
    const bool exists = row < rows;  // threads of a row past the last one take part in the collectives
    const unsigned turned = shape.NH + shape.NKV, token = static_cast<unsigned>(row) / turned,
                   head = static_cast<unsigned>(row) % turned;
    const int HS = exists ? shape.HS : 0;
    const size_t position = (turn.before ? *turn.before : 0) + token % static_cast<unsigned>(shape.T),
                 first = (static_cast<size_t>(token) * (turned + shape.NKV) + head) * shape.HS;
    HeadPart<W, N> x(qkv + first, HS);
    if constexpr (Norm == HeadNorm::backward) {
        const HeadPart<W, N> n(norms.y + first, HS);
        const float average = x.average(n, shape.HS), r = exists ? norms.rstd[row] : 0.0f;
        x.each([=](int, float& d, float of_n) INLINE { d = (d - of_n * average) * r; }, n);
    } else if constexpr (Norm != HeadNorm::none) {
        const float r = simt::rsqrt(x.average(x, shape.HS) + norms.eps);
        if (exists && simt::row_lane<W::threads>() == 0) norms.rstd[row] = r;
        if (Norm == HeadNorm::weighted && norms.x) x.store_to(norms.x + row * shape.HS);
        x.each([=](int, float& n) INLINE { n *= r; });
        if constexpr (Norm == HeadNorm::weighted) {
            const HeadPart<W, N> weight(head < static_cast<unsigned>(shape.NH) ? norms.q : norms.k, HS);
            x.each([](int, float& n, float w) INLINE { n *= w; }, weight);
        }
    }
    x.turn(turn.table + position * shape.HS, turn.direction);
    x.store_to(qkv + first);
}

inline unsigned rows_of_heads(const AttentionShape& s) {
    CHECK(s.B > 0 && s.T > 0 && s.NH > 0 && s.NKV > 0,
          "rope: B = {}, T = {}, NH = {} and NKV = {} must be positive", s.B, s.T, s.NH, s.NKV);
    CHECK(s.HS > 0 && s.HS % 2 == 0 && s.HS <= 128, "rope: HS = {} must be even, and from 2 to 128", s.HS);
    const size_t rows = static_cast<size_t>(s.B) * s.T * (s.NH + s.NKV);
    CHECK(rows <= 0xffffffff, "rope: {} heads of all tokens are too many; use a smaller batch", rows);
    return static_cast<unsigned>(rows);
}

// Turns q and k, and normalises them if norms.rstd is there; or turns their gradient back, through nanochat's
// norm. The table has all positions. Reads and writes (NH + NKV) * HS elements a token, and as many of y or
// of x; bound by memory bandwidth.
template <class W = simt::NativeWidth<4>, class T>
void rope(T* qkv, HeadNorms<T> norms, Turn turn, AttentionShape shape, stream_t stream) {
    const unsigned rows = rows_of_heads(shape);
    simt::for_vector_length<W, T>(shape.HS / 2, [&](auto n) {
        const auto kernel = !norms.rstd ? rope_kernel<W, n(), T, HeadNorm::none>
                            : norms.y   ? rope_kernel<W, n(), T, HeadNorm::backward>
                            : norms.q   ? rope_kernel<W, n(), T, HeadNorm::weighted>
                                        : rope_kernel<W, n(), T, HeadNorm::forward>;
        launch_rows<W::threads>(kernel, rows, 0, stream, qkv, norms, turn, shape, rows);
    });
}

// Backward of a norm with weights divides the tokens into groups, whose sums are few beside the heads
// themselves. A block of a GPU computes several heads of its group at a time.
template <class W>
constexpr unsigned heads_at_once = W::threads == 1 ? 1 : 128 / W::threads;
template <class W = simt::NativeWidth<8>>
size_t weighted_rope_sums(size_t tokens) {
    return std::min<size_t>(ceil_div<size_t>(tokens, 64), 2 * simt::multiprocessors()) * heads_at_once<W>;
}

// sums (groups, heads_at_once, 2, HS) = d n over heads of q in blocks with blockIdx.y = 0, and of k in others
template <class W, int N, class T>
__global__ void __launch_bounds__(heads_at_once<W>* W::threads)
    weighted_rope_backward_kernel(T* dqkv, float* sums, HeadNorms<T> norms, Turn turn, AttentionShape shape,
                                  unsigned tokens_per_group) {
    const bool of_q = blockIdx.y == 0;
    const int HS = shape.HS;
    const unsigned heads = of_q ? shape.NH : shape.NKV, own = threadIdx.x / W::threads,
                   begin = blockIdx.x * tokens_per_group,
                   end = min(static_cast<unsigned>(shape.B * shape.T), begin + tokens_per_group) * heads;
    const HeadPart<W, N> weight(of_q ? norms.q : norms.k, HS);
    HeadPart<W, N> sum = weight;
    sum.each([](int, float& s) INLINE { s = 0.0f; });
    for (unsigned first = begin * heads; first < end; first += heads_at_once<W>) {
        const bool exists = first + own < end;  // the others take part in the collectives
        const unsigned head = exists ? first + own : first, token = head / heads;
        const size_t row = size_t{token} * (shape.NH + shape.NKV) + (of_q ? 0 : shape.NH) + head % heads;
        T* const dy = dqkv + (row + size_t{token} * shape.NKV) * HS;
        HeadPart<W, N> d(dy, exists ? HS : 0), x(norms.x + row * HS, exists ? HS : 0);
        const float r = norms.rstd[row];
        d.turn(turn.table + size_t{token % shape.T} * HS, turn.direction);
        sum.each([=](int, float& s, float of_d, float of_x) INLINE { s += of_d * (of_x * r); }, d, x);
        d.each([](int, float& g, float w) INLINE { g *= w; }, weight);
        const float average = d.average(x, HS) * r;
        d.each([=](int, float& g, float of_x) INLINE { g = (g - of_x * r * average) * r; }, x);
        d.store_to(dy);
    }
    sum.store_to(sums + ((blockIdx.x * heads_at_once<W> + own) * 2 + blockIdx.y) * HS);
}

// dqkv = the gradient of the heads before norm and rotation, from that of the turned heads; dweight_q and
// dweight_k (HS) +=. scratch: 2 HS floats for each of weighted_rope_sums of as many tokens or more. Reads x
// beside dqkv; bound by memory bandwidth.
template <class W = simt::NativeWidth<8>, class T>
void weighted_rope_backward(T* dqkv, float* dweight_q, float* dweight_k, float* scratch, HeadNorms<T> norms,
                            Turn turn, AttentionShape shape, stream_t stream) {
    const unsigned tokens = rows_of_heads(shape) / (shape.NH + shape.NKV);
    const size_t sums = weighted_rope_sums<W>(tokens);
    const auto groups = static_cast<unsigned>(sums / heads_at_once<W>);
    simt::for_vector_length<W, T>(shape.HS / 2, [&](auto n) {
        launch(weighted_rope_backward_kernel<W, n(), T>, dim3(groups, 2), heads_at_once<W> * W::threads, 0,
               stream, dqkv, scratch, norms, turn, shape, ceil_div(tokens, groups));
    });
    add_rows({dweight_q, dweight_k}, scratch, sums, static_cast<size_t>(shape.HS), stream);
}
