// vec_sums.cuh: the sum and the largest element of a Vec, and the sums of several
//   On the CPU these are explicit vector instructions. From a loop over ever shorter halves, g++ makes scalar
//   additions through memory, which took as long as all else that layernorm does with 128 channels.
#pragma once
#include <utility>

#include "kernels/simt/vec.cuh"

namespace simt {

#ifndef __CUDACC__
namespace detail {

constexpr int native_lanes = cpu_vector_bytes / sizeof(float);
typedef float Native __attribute__((vector_size(cpu_vector_bytes), may_alias));

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

// Combines element i with element i + N / 2, then the same with the halves of the result, until it is one
// vector, `to`.
template <int N, class Combine>
__forceinline__ void fold_to_native(Native& to, const Vec<float, N>& v, Combine combine) {
    Native parts[N / native_lanes];
    UNROLL_REGISTERS
    for (int p = 0; p < N / native_lanes; p++)
        parts[p] = *reinterpret_cast<const Native*>(v.x + p * native_lanes);
    UNROLL_REGISTERS
    for (int half = N / native_lanes / 2; half > 0; half /= 2) {
        UNROLL_REGISTERS
        for (int p = 0; p < half; p++) combine(parts[p], parts[p + half]);
    }
    to = parts[0];
}
// The same with the first `width` lanes, until it is one lane.
template <int width, class Combine>
__forceinline__ float fold(const Native& v, Combine combine) {
    if constexpr (width == 1) return v[0];
    else {
        constexpr auto same = [](int lane) { return lane; };
        Native halves = v;
        combine(halves, shuffle<width / 2>(v, v, same));
        return fold<width / 2>(halves, combine);
    }
}
inline constexpr auto add_to = [](Native& a, const Native& b) INLINE { a += b; };

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

template <int N>
__device__ float sum(const Vec<float, N>& v) {  // pairwise, so that the error grows with log2(N)
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (N % native_lanes == 0) {
        Native halves;
        fold_to_native(halves, v, add_to);
        return fold<native_lanes>(halves, add_to);
    }
#endif
    Vec<float, N> s = v;
    UNROLL
    for (int half = N / 2; half > 0; half /= 2) {
        UNROLL
        for (int i = 0; i < half; i++) s[i] += s[i + half];
    }
    return s[0];
}
template <int N>  // a NaN is ignored, as in warp_max
__device__ float max(const Vec<float, N>& v) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (N % native_lanes == 0) {
        constexpr auto raise_to = [](Native& a, const Native& b) INLINE {
            const Native other = b == b ? b : Native{} - INFINITY;
            a = a > other ? a : other;
        };
        Native halves;
        fold_to_native(halves, v, raise_to);
        return fold<native_lanes>(halves, raise_to);
    }
#endif
    Vec<float, N> m;
    UNROLL
    for (int i = 0; i < N; i++) m[i] = larger(v[i], -INFINITY);
    UNROLL
    for (int half = N / 2; half > 0; half /= 2) {
        UNROLL
        for (int i = 0; i < half; i++) m[i] = larger(m[i], m[i + half]);
    }
    return m[0];
}

// The sum of each row, as sum() adds it.
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
            for (int i = 0; i < native_lanes; i++) fold_to_native(vectors[i], rows[r + i], add_to);
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

}  // namespace simt
