// vec_products.cuh: the inner loops of matrix products over Vecs
#pragma once
#include <utility>

#include "kernels/simt/vec.cuh"

namespace simt {

#ifndef __CUDACC__
namespace detail {
constexpr int native_lanes = cpu_vector_bytes / sizeof(float);
typedef float Native __attribute__((vector_size(cpu_vector_bytes), may_alias));
}  // namespace detail
#endif

// sum += factor * v, the innermost line of a matrix product. On the CPU it is an explicit vector
// instruction, so that an array of sums stays in registers: 180 GFLOP/s a core. The vectoriser reaches 8
// to 190, depending on the shape of the surrounding loops.
template <int N>
__device__ __forceinline__ void multiply_add(Vec<float, N>& sum, float factor, const Vec<float, N>& v) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (N % native_lanes == 0) {
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += native_lanes)
            *reinterpret_cast<Native*>(sum.x + i) += factor * *reinterpret_cast<const Native*>(v.x + i);
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < N; i++) sum[i] += factor * v[i];
}

// sum += a * b, element by element. If the sum is shorter than a and b (S < N), its element i adds up
// the products i, i + S, i + 2 S, ...
template <int S, int N>
__device__ __forceinline__ void multiply_add(Vec<float, S>& sum, const Vec<float, N>& a,
                                             const Vec<float, N>& b) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (S % native_lanes == 0) {
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += native_lanes) {
            *reinterpret_cast<Native*>(sum.x + i % S) +=
                *reinterpret_cast<const Native*>(a.x + i) * *reinterpret_cast<const Native*>(b.x + i);
        }
        return;
    }
#endif
    // As an expression, g++ would decide for each loop whether a product is rounded before it is added.
    UNROLL
    for (int i = 0; i < N; i++) sum[i % S] = fmaf(a[i], b[i], sum[i % S]);
}

#ifndef __CUDACC__
namespace detail {

// Lane i of the result is lane from(i) + offset of a and b, whose lanes follow those of a.
template <int offset, class From, int... i>
__forceinline__ Native shuffle(const Native& a, const Native& b, From from,
                               std::integer_sequence<int, i...>) {
#if __has_builtin(__builtin_shufflevector)
    return __builtin_shufflevector(a, b, from(i) + offset...);
#else  // g++ 11
    typedef int Places __attribute__((vector_size(cpu_vector_bytes)));
    return __builtin_shuffle(a, b, Places{from(i) + offset...});
#endif
}
template <int offset, class From>
__forceinline__ Native shuffle(const Native& a, const Native& b, From from) {
    return shuffle<offset>(a, b, from, std::make_integer_sequence<int, native_lanes>{});
}

// The vectors hold the sums of several rows, each in `width` lanes. Adds the halves of each, so that half as
// many vectors hold them; the last one holds the sum of row r in lane r.
template <int width>
__forceinline__ void add_halves(Native (&vectors)[native_lanes]) {
    constexpr int half = width / 2;
    // Sums of a and b take turns.
    constexpr auto from = [](int lane) {
        const int group = lane / half;
        return group % 2 * native_lanes + group / 2 * width + lane % half;
    };
    UNROLL_REGISTERS
    for (int i = 0; i < half; i++)
        vectors[i] = shuffle<0>(vectors[i], vectors[i + half], from) +
                     shuffle<half>(vectors[i], vectors[i + half], from);
    if constexpr (half > 1) add_halves<half>(vectors);
}

}  // namespace detail
#endif

// The sum of each row, pairwise as sum() adds it (vec.cuh).
template <int R, int N>
__device__ __forceinline__ Vec<float, R> sums_of_rows(const Vec<float, N> (&rows)[R]) {
    Vec<float, R> sums;
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (N % native_lanes == 0 && R % native_lanes == 0) {
        UNROLL_REGISTERS
        for (int r = 0; r < R; r += native_lanes) {
            Native vectors[native_lanes];
            UNROLL_REGISTERS
            for (int i = 0; i < native_lanes; i++) {
                Native parts[N / native_lanes];
                UNROLL_REGISTERS
                for (int p = 0; p < N / native_lanes; p++)
                    parts[p] = *reinterpret_cast<const Native*>(rows[r + i].x + p * native_lanes);
                UNROLL_REGISTERS
                for (int half = N / native_lanes / 2; half > 0; half /= 2) {
                    UNROLL_REGISTERS
                    for (int p = 0; p < half; p++) parts[p] += parts[p + half];
                }
                vectors[i] = parts[0];
            }
            add_halves<native_lanes>(vectors);
            *reinterpret_cast<Native*>(sums.x + r) = vectors[0];
        }
        return sums;
    }
#endif
    UNROLL
    for (int r = 0; r < R; r++) sums[r] = sum(rows[r]);
    return sums;
}

// columns[c][r] = rows[r][c]
template <int R, int C>
__device__ __forceinline__ void transpose(Vec<float, R> (&columns)[C], const Vec<float, C> (&rows)[R]) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (R % native_lanes == 0 && C % native_lanes == 0) {
        // Rounds, each of which interleaves the lower and the upper half of the rows, as one riffles cards.
        constexpr auto from = [](int lane) { return lane % 2 * native_lanes + lane / 2; };
        constexpr int half = native_lanes / 2;
        UNROLL_REGISTERS
        for (int block = 0; block < R * C; block += native_lanes * native_lanes) {
            const int r = block / native_lanes % R, c = block / native_lanes / R * native_lanes;
            Native deck[native_lanes], shuffled[native_lanes];
            UNROLL_REGISTERS
            for (int i = 0; i < native_lanes; i++)
                deck[i] = *reinterpret_cast<const Native*>(rows[r + i].x + c);
            UNROLL_REGISTERS
            for (int round = 1; round < native_lanes; round *= 2) {
                UNROLL_REGISTERS
                for (int i = 0; i < half; i++) {
                    shuffled[2 * i] = shuffle<0>(deck[i], deck[i + half], from);
                    shuffled[2 * i + 1] = shuffle<half>(deck[i], deck[i + half], from);
                }
                UNROLL_REGISTERS
                for (int i = 0; i < native_lanes; i++) deck[i] = shuffled[i];
            }
            UNROLL_REGISTERS
            for (int i = 0; i < native_lanes; i++) *reinterpret_cast<Native*>(columns[c + i].x + r) = deck[i];
        }
        return;
    }
#endif
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int c = 0; c < C; c++) columns[c][r] = rows[r][c];
    }
}

}  // namespace simt
