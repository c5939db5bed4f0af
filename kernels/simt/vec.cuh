// vec.cuh: N neighbouring elements, loaded or stored at once and computed on as floats
//   Memory holds T (float or bfloat16), registers hold Vec<float, N>. Addresses are aligned to N
//   elements (on a GPU to at most 16 bytes).
//   Loads read global or shared memory. store writes global memory, store_shared writes shared memory.
//   The streaming forms are a hint to the GPU's caches that these bytes will not be read again soon.
#pragma once
#include <type_traits>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/math.cuh"
#include "kernels/simt/target.h"
#if defined(__AVX512BF16__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace simt {

template <class T, int N>
struct alignas(N * sizeof(T) > 64 ? 64 : N * sizeof(T)) Vec {
    static_assert((N & (N - 1)) == 0, "the length of a Vec is a power of two");
    T x[N];
    __device__ T& operator[](int i) { return x[i]; }
    __device__ const T& operator[](int i) const { return x[i]; }
};

template <int N>
__device__ Vec<float, N> broadcast(float value) {
    Vec<float, N> v;
    UNROLL
    for (int i = 0; i < N; i++) v[i] = value;
    return v;
}

namespace detail {

#ifdef __CUDACC__
template <size_t Bytes>
struct Word;
template <>
struct Word<1> {
    using type = unsigned char;
};
template <>
struct Word<2> {
    using type = unsigned short;
};
template <>
struct Word<4> {
    using type = unsigned;
};
template <>
struct Word<8> {
    using type = uint2;
};
template <>
struct Word<16> {
    using type = uint4;
};

// One store to global memory as PTX: from plain C++, nvcc 13 splits some 16-byte stores in loops into four.
template <class W>
__device__ __forceinline__ void store_word(W* address, const W& word) {
    *address = word;
}
__device__ __forceinline__ void store_word(uint2* address, const uint2& word) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(word.x), "r"(word.y) : "memory");
}
__device__ __forceinline__ void store_word(uint4* address, const uint4& word) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(word.x), "r"(word.y),
                 "r"(word.z), "r"(word.w)
                 : "memory");
}

template <bool Streaming, class T, int N>
__device__ Vec<T, N> load_raw(const T* address) {
    constexpr size_t bytes = sizeof(T) * N;
    using W = typename Word<(bytes < 16 ? bytes : 16)>::type;
    Vec<T, N> v;
    UNROLL
    for (size_t i = 0; i < bytes / sizeof(W); i++) {
        const W* word = reinterpret_cast<const W*>(address) + i;
        reinterpret_cast<W*>(&v)[i] = Streaming ? __ldcs(word) : *word;
    }
    return v;
}
template <bool Streaming, class T, int N>
__device__ void store_raw(T* address, const Vec<T, N>& v) {
    constexpr size_t bytes = sizeof(T) * N;
    using W = typename Word<(bytes < 16 ? bytes : 16)>::type;
    UNROLL
    for (size_t i = 0; i < bytes / sizeof(W); i++) {
        W* word = reinterpret_cast<W*>(address) + i;
        if (Streaming) __stcs(word, reinterpret_cast<const W*>(&v)[i]);
        else store_word(word, reinterpret_cast<const W*>(&v)[i]);
    }
}
template <class T, int N>
__device__ void store_shared_raw(T* address, const Vec<T, N>& v) {
    constexpr size_t bytes = sizeof(T) * N;
    using W = typename Word<(bytes < 16 ? bytes : 16)>::type;
    UNROLL
    for (size_t i = 0; i < bytes / sizeof(W); i++)
        reinterpret_cast<W*>(address)[i] = reinterpret_cast<const W*>(&v)[i];
}
#else
inline void check_alignment([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
    if constexpr (checked) {
        const size_t alignment = std::min<size_t>(bytes, 16);
        if (reinterpret_cast<uintptr_t>(address) % alignment != 0) cpu::refuse_misaligned(address, alignment);
    }
}
template <bool Streaming, class T, int N>
Vec<T, N> load_raw(const T* address) {
    check_alignment(address, sizeof(T) * N);
    Vec<T, N> v;
    std::memcpy(v.x, address, sizeof(v.x));
    return v;
}
template <bool Streaming, class T, int N>
void store_raw(T* address, const Vec<T, N>& v) {
    check_alignment(address, sizeof(T) * N);
    if constexpr (checked) cpu::check_store(address, false);
    std::memcpy(address, v.x, sizeof(v.x));
}
template <class T, int N>
void store_shared_raw(T* address, const Vec<T, N>& v) {
    check_alignment(address, sizeof(T) * N);
    if constexpr (checked) cpu::check_store(address, true);
    std::memcpy(address, v.x, sizeof(v.x));
}
#endif

template <class T, int N>
__device__ __forceinline__ float widened(const Vec<T, N>& v, int i) {
#ifdef __CUDA_ARCH__
    // one instruction; nvcc's own conversion takes two for the upper half of a register
    if constexpr (std::is_same_v<T, bfloat16> && N % 2 == 0) {
        const unsigned pair = reinterpret_cast<const unsigned*>(&v)[i / 2];
        return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    } else {
        return static_cast<float>(v[i]);
    }
#else
    return static_cast<float>(v[i]);
#endif
}
// Rounds to nearest even, as many elements at once as one instruction can.
#ifdef __CUDA_ARCH__
constexpr int rounded_at_once = 2;
__device__ __forceinline__ void round_group(bfloat16* to, const float* from) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
    to[0].bits = __bfloat16_as_ushort(__low2bfloat16(pair));
    to[1].bits = __bfloat16_as_ushort(__high2bfloat16(pair));
}
#elif defined(__AVX512BF16__) && !defined(__CUDACC__)
constexpr int rounded_at_once = 32;  // flushes subnormals to 0; the scalar form takes two dozen instructions
inline void round_group(bfloat16* to, const float* from) {
    const __m512bh group = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
    std::memcpy(to, &group, sizeof(group));
}
#else
constexpr int rounded_at_once = 1;
__device__ inline void round_group(bfloat16* to, const float* from) { *to = bfloat16(*from); }
#endif
template <int N>
__device__ Vec<bfloat16, N> round(const Vec<float, N>& v) {
    Vec<bfloat16, N> rounded;
    UNROLL
    for (int i = 0; i < N / rounded_at_once * rounded_at_once; i += rounded_at_once)
        round_group(rounded.x + i, v.x + i);
    UNROLL
    for (int i = N / rounded_at_once * rounded_at_once; i < N; i++) rounded[i] = bfloat16(v[i]);
    return rounded;
}

}  // namespace detail

template <class T, int N>
__device__ Vec<float, N> widen(const Vec<T, N>& v) {
    if constexpr (std::is_same_v<T, float>) {
        return v;
    } else {
        Vec<float, N> wide;
        UNROLL
        for (int i = 0; i < N; i++) wide[i] = detail::widened(v, i);
        return wide;
    }
}
template <class T, int N>
__device__ Vec<T, N> narrow(const Vec<float, N>& v) {
    if constexpr (std::is_same_v<T, float>) return v;
    else return detail::round(v);
}

template <int N, class T>
__device__ Vec<float, N> load(const T* address) {
    return widen(detail::load_raw<false, T, N>(address));
}
template <int N, class T>
__device__ Vec<float, N> load_streaming(const T* address) {
    return widen(detail::load_raw<true, T, N>(address));
}
template <int N, class T>
__device__ void store(T* address, const Vec<float, N>& v) {
    detail::store_raw<false, T, N>(address, narrow<T>(v));
}
template <int N, class T>
__device__ void store_shared(T* address, const Vec<float, N>& v) {
    detail::store_shared_raw(address, narrow<T>(v));
}
template <int N, class T>
__device__ void store_streaming(T* address, const Vec<float, N>& v) {
    detail::store_raw<true, T, N>(address, narrow<T>(v));
}
// Loads and stores without the conversion, for kernels that load many vectors before they compute with
// the first: elements that wait in registers are then as short as in memory.
template <int N, class T>
__device__ Vec<T, N> load_raw(const T* address) {
    return detail::load_raw<false, T, N>(address);
}
template <int N, class T>
__device__ void store_raw(T* address, const Vec<T, N>& v) {
    detail::store_raw<false, T, N>(address, v);
}

// For a loop that fills an array of vectors under a condition. It keeps g++'s loop vectoriser away,
// which loses some of the vectors (12.2, -O3).
__device__ __forceinline__ void one_at_a_time() {
#ifndef __CUDACC__
    asm volatile("");
#endif
}

// Keeps vectors that wait in registers in their short type. nvcc would widen each one once for all its
// uses, and so occupy twice as many registers in between.
template <class T, int N>
__device__ __forceinline__ void stay_narrow([[maybe_unused]] Vec<T, N>& v) {
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        UNROLL
        for (int i = 0; i < N / 2; i++) asm volatile("" : "+r"(reinterpret_cast<unsigned*>(&v)[i]));
    }
#endif
}

// sum += factor * v, the innermost line of a matrix product. On the CPU it is an explicit vector
// instruction, so that an array of sums stays in registers: 180 GFLOP/s a core. The vectoriser reaches 8
// to 190, depending on the shape of the surrounding loops.
template <int N>
__device__ __forceinline__ void multiply_add(Vec<float, N>& sum, float factor, const Vec<float, N>& v) {
#ifndef __CUDACC__
    constexpr int lanes = cpu_vector_bytes / sizeof(float);
    if constexpr (N % lanes == 0) {
        typedef float Native __attribute__((vector_size(cpu_vector_bytes), may_alias));
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += lanes)
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
    constexpr int lanes = cpu_vector_bytes / sizeof(float);
    if constexpr (S % lanes == 0) {
        typedef float Native __attribute__((vector_size(cpu_vector_bytes), may_alias));
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += lanes) {
            *reinterpret_cast<Native*>(sum.x + i % S) +=
                *reinterpret_cast<const Native*>(a.x + i) * *reinterpret_cast<const Native*>(b.x + i);
        }
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < N; i++) sum[i % S] += a[i] * b[i];
}

// columns[c][r] = rows[r][c]
template <int R, int C>
__device__ __forceinline__ void transpose(Vec<float, R> (&columns)[C], const Vec<float, C> (&rows)[R]) {
#ifndef __CUDACC__
    if constexpr (R == 16 && C == 16 && cpu_vector_bytes == 64) {
        // Four rounds, each of which interleaves the lower and the upper half of the rows, as one
        // riffles cards.
        typedef float Native __attribute__((vector_size(64), may_alias));
        Native deck[16], shuffled[16];
        UNROLL_REGISTERS
        for (int i = 0; i < 16; i++) deck[i] = *reinterpret_cast<const Native*>(rows[i].x);
        UNROLL_REGISTERS
        for (int round = 0; round < 4; round++) {
            UNROLL_REGISTERS
            for (int i = 0; i < 8; i++) {
#if __has_builtin(__builtin_shufflevector)
                shuffled[2 * i] = __builtin_shufflevector(deck[i], deck[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4,
                                                          20, 5, 21, 6, 22, 7, 23);
                shuffled[2 * i + 1] = __builtin_shufflevector(deck[i], deck[i + 8], 8, 24, 9, 25, 10, 26, 11,
                                                              27, 12, 28, 13, 29, 14, 30, 15, 31);
#else  // g++ 11
                typedef int Places __attribute__((vector_size(64)));
                shuffled[2 * i] = __builtin_shuffle(
                    deck[i], deck[i + 8], Places{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
                shuffled[2 * i + 1] =
                    __builtin_shuffle(deck[i], deck[i + 8],
                                      Places{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
#endif
            }
            UNROLL_REGISTERS
            for (int i = 0; i < 16; i++) deck[i] = shuffled[i];
        }
        UNROLL_REGISTERS
        for (int i = 0; i < 16; i++) *reinterpret_cast<Native*>(columns[i].x) = deck[i];
        return;
    }
#endif
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int c = 0; c < C; c++) columns[c][r] = rows[r][c];
    }
}

template <int N>
__device__ float sum(const Vec<float, N>& v) {  // pairwise, so that the error grows with log2(N)
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

// Calls body(std::integral_constant<int, N>) with the longest vector of T that W allows, if rows of C
// elements keep its alignment, else with N = 1.
template <class W, class T, class Body>
void for_vector_length(size_t C, Body body) {
    constexpr int N = W::bytes / sizeof(T);
    if (C % N == 0) body(std::integral_constant<int, N>{});
    else body(std::integral_constant<int, 1>{});
}

}  // namespace simt
