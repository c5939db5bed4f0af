// products.cuh: loads of the factors of multiply_add (vec_products.cuh), and a prefetch
//   load_factors<N>(address) returns the same as load<N>. On the CPU it is one explicit vector instruction
//   or two. The factors of multiply_add must be loaded into a vector register; otherwise g++ copies them to
//   memory in halves and waits for these (6 GB/s a core instead of 35), and it converts int8 one by one.
#pragma once
#include "kernels/simt/vec.cuh"
#include "kernels/simt/vec_products.cuh"
#ifndef __CUDACC__
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#endif

namespace simt {

#ifndef __CUDACC__
namespace detail {

#if defined(__AVX512F__)
// g++ 12 warns about the unmasked forms (bug 105593), and compiles both to the same code
constexpr __mmask16 every_lane = 0xffff;
#endif

inline Native load_native(const float* address) {
    Native v;
    std::memcpy(&v, address, sizeof(v));
    return v;
}
// g++ 12 has __builtin_convertvector, but compiles it lane by lane.
inline Native load_native(const bfloat16* address) {
#if defined(__AVX512F__)
    const __m512i words = _mm512_maskz_cvtepu16_epi32(
        every_lane, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(address)));
#elif defined(__AVX2__)
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(address)));
#else
    LaneBits words;
    for (int i = 0; i < cpu_lanes; i++) words[i] = address[i].bits;
#endif
    return std::bit_cast<Native>(std::bit_cast<LaneBits>(words) << 16);
}
inline Native load_native(const int8_t* address) {
#if defined(__AVX512F__)
    return _mm512_maskz_cvtepi32_ps(
        every_lane,
        _mm512_maskz_cvtepi8_epi32(every_lane, _mm_loadu_si128(reinterpret_cast<const __m128i*>(address))));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(address))));
#else
    Native v;
    for (int i = 0; i < cpu_lanes; i++) v[i] = static_cast<float>(address[i]);
    return v;
#endif
}

}  // namespace detail
#endif

template <int N, class T>
__device__ __forceinline__ Vec<float, N> load_factors(const T* address) {
#ifndef __CUDACC__
    if constexpr (N % cpu_lanes == 0) {
        detail::check_alignment(address, sizeof(T) * N);
        Vec<float, N> v;
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += cpu_lanes)
            *reinterpret_cast<detail::Native*>(v.x + i) = detail::load_native(address + i);
        return v;
    }
#endif
    return load<N>(address);
}

// Prefetches the N elements that lie 8192 bytes after these, in an array that is read from beginning to end;
// they need not exist. It acts on the CPU only: a GPU hides latency by running other warps.
//   They come into the second-level cache, which can wait for more lines at once than the first-level one:
//   with two dozen lines under way, a core that waits 120 ns for each reads 13 GB/s, however early it asks.
//   On a Zen 4, compared with 1024 bytes ahead and the first level, a token of GPT-2 124M took 0.74 of the
//   time in bf16, 0.68 in fp32 with int8 weights, and as long as before in fp32 and in bf16 with int8
//   weights; a sum over memory took 0.93.
template <int N, class T>
__device__ __forceinline__ void prefetch_ahead([[maybe_unused]] const T* address) {
#ifndef __CUDACC__
    UNROLL
    for (size_t line = 0; line < N * sizeof(T); line += 64)
        __builtin_prefetch(reinterpret_cast<const std::byte*>(address) + 8192 + line, 0, 2);
#endif
}

}  // namespace simt
