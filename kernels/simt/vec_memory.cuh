// vec_memory.cuh: Vec, and how each machine moves one between memory and registers
//   vec.cuh has the functions that kernels call.
#pragma once
#include <type_traits>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/math.cuh"
#include "kernels/simt/target.h"
#ifndef __CUDACC__
#include "kernels/simt/cpu_lanes.h"
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
template <int N>
__device__ void store_around_caches(float* address, const Vec<float, N>& v) {
    store_raw<true>(address, v);
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
template <int N>
void store_around_caches(float* address, const Vec<float, N>& v) {
#ifdef __SSE__
    check_alignment(address, sizeof(v.x));
    if constexpr (checked) cpu::check_store(address, false);
    for (int i = 0; i < N; i += 4) _mm_stream_ps(address + i, _mm_loadu_ps(v.x + i));
#else
    store_raw<true>(address, v);
#endif
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
// Rounds to nearest even, as many elements at once as one instruction can: the scalar form takes two dozen.
template <int N>
__device__ __forceinline__ Vec<bfloat16, N> round(const Vec<float, N>& v) {
    Vec<bfloat16, N> rounded;
#ifdef __CUDA_ARCH__
    if constexpr (N % 2 == 0) {
        UNROLL
        for (int i = 0; i < N; i += 2) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(v[i], v[i + 1]);
            rounded[i].bits = __bfloat16_as_ushort(__low2bfloat16(pair));
            rounded[i + 1].bits = __bfloat16_as_ushort(__high2bfloat16(pair));
        }
    } else
#elif !defined(__CUDACC__)
    const auto lanes = [&](int i) INLINE { return *reinterpret_cast<const Lanes*>(v.x + i); };
    if constexpr (N % (2 * cpu_lanes) == 0) {
        for (int i = 0; i < N; i += 2 * cpu_lanes)
            *reinterpret_cast<LaneBits*>(rounded.x + i) = round_to_bf16(lanes(i), lanes(i + cpu_lanes));
    } else if constexpr (N == cpu_lanes) {
        *reinterpret_cast<HalfBits*>(rounded.x) = round_to_bf16(lanes(0));
    } else
#endif
    {
        UNROLL
        for (int i = 0; i < N; i++) rounded[i] = bfloat16(v[i]);
    }
    return rounded;
}

}  // namespace detail

// For a loop that fills or reads an array of vectors under a condition: g++'s loop vectoriser (12.2, -O3)
// would lose some of the vectors, and this keeps it away.
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

}  // namespace simt
