// vec_sums.cuh: the sum and the largest element of a Vec, and the sums of several
//   On the CPU these are explicit vector instructions. From a loop over ever shorter halves, g++ makes scalar
//   additions through memory: two fifths of layernorm's time with 128 channels on a Zen 4.
#pragma once
#include <utility>

#include "kernels/simt/vec.cuh"

namespace simt {

#ifndef __CUDACC__
namespace detail {

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
    return shuffle<offset>(a, b, from, std::make_integer_sequence<int, cpu_lanes>{});
}

// fold(), until one vector is left: `to`.
template <int N, class Combine>
__forceinline__ void fold_to_native(Native& to, const Vec<float, N>& v, Combine combine) {
    Native parts[N / cpu_lanes];
    UNROLL_REGISTERS
    for (int p = 0; p < N / cpu_lanes; p++) parts[p] = *reinterpret_cast<const Native*>(v.x + p * cpu_lanes);
    UNROLL_REGISTERS
    for (int half = N / cpu_lanes / 2; half > 0; half /= 2) {
        UNROLL_REGISTERS
        for (int p = 0; p < half; p++) combine(parts[p], parts[p + half]);
    }
    to = parts[0];
}
// fold(), of the first `width` lanes.
template <int width, class Combine>
__forceinline__ float fold_lanes(const Native& v, Combine combine) {
    if constexpr (width == 1) return v[0];
    else {
        constexpr auto same = [](int lane) { return lane; };
        Native halves = v;
        combine(halves, shuffle<width / 2>(v, v, same));
        return fold_lanes<width / 2>(halves, combine);
    }
}

// The vectors hold the sums of several rows, each in `width` lanes. Adds the halves of each, so that half as
// many vectors hold them; the last one holds the sum of row r in lane r.
template <int width>
__forceinline__ void add_halves(Native (&vectors)[cpu_lanes]) {
    constexpr int half = width / 2;
    // Sums of a and b take turns.
    constexpr auto from = [](int lane) {
        const int group = lane / half;
        return group % 2 * cpu_lanes + group / 2 * width + lane % half;
    };
    UNROLL_REGISTERS
    for (int i = 0; i < half; i++)
        vectors[i] = shuffle<0>(vectors[i], vectors[i + half], from) +
                     shuffle<half>(vectors[i], vectors[i + half], from);
    if constexpr (half > 1) add_halves<half>(vectors);
}

}  // namespace detail

__forceinline__ detail::Native larger(const detail::Native& a, const detail::Native& b) {
    return a > b ? a : b;
}
#endif

// combine(a, b) on elements i and i + N / 2, then the same with the halves of the result, until one is left.
template <int N, class Combine>
__device__ __forceinline__ float fold(const Vec<float, N>& all, Combine combine) {
#ifndef __CUDACC__
    if constexpr (N % cpu_lanes == 0) {
        detail::Native folded;
        detail::fold_to_native(folded, all, combine);
        return detail::fold_lanes<cpu_lanes>(folded, combine);
    }
#endif
    Vec<float, N> v = all;
    UNROLL
    for (int half = N / 2; half > 0; half /= 2) {
        UNROLL
        for (int i = 0; i < half; i++) combine(v[i], v[i + half]);
    }
    return v[0];
}

template <int N>
__device__ float sum(const Vec<float, N>& v) {  // pairwise, so that the error grows with log2(N)
    return fold(v, [](auto& a, const auto& b) INLINE { a += b; });
}
template <int N>  // a NaN is ignored, as in warp_max
__device__ float max(const Vec<float, N>& v) {
    Vec<float, N> numbers;
    UNROLL
    for (int i = 0; i < N; i++) numbers[i] = larger(v[i], -INFINITY);
    return fold(numbers, [](auto& a, const auto& b) INLINE { a = larger(a, b); });
}

// The sum of each row, as sum() adds it.
template <int R, int N>
__device__ __forceinline__ Vec<float, R> sums_of_rows(const Vec<float, N> (&rows)[R]) {
    Vec<float, R> sums;
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (N % cpu_lanes == 0 && R % cpu_lanes == 0) {
        UNROLL_REGISTERS
        for (int r = 0; r < R; r += cpu_lanes) {
            Native vectors[cpu_lanes];
            UNROLL_REGISTERS
            for (int i = 0; i < cpu_lanes; i++)
                fold_to_native(vectors[i], rows[r + i], [](auto& a, const auto& b) INLINE { a += b; });
            add_halves<cpu_lanes>(vectors);
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
