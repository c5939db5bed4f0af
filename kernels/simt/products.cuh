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

typedef int32_t NativeWords __attribute__((vector_size(cpu_vector_bytes), may_alias));

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
    NativeWords words;
    for (int i = 0; i < cpu_lanes; i++) words[i] = address[i].bits;
#endif
    return std::bit_cast<Native>(std::bit_cast<NativeWords>(words) << 16);
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

// Prefetches the N elements that lie 1024 bytes after these, in an array that is read from beginning to end;
// they need not exist. It acts on the CPU only: a GPU hides latency by running other warps.
//   A core that reads 10 GB/s reads 1024 bytes during one access to memory, which takes 100 ns. In
//   generation, distances of 512 to 4096 bytes gave speeds that differed by up to a fifth, and none was the
//   best for every type and length of rows.
template <int N, class T>
__device__ __forceinline__ void prefetch_ahead([[maybe_unused]] const T* address) {
#ifndef __CUDACC__
    UNROLL
    for (size_t line = 0; line < N * sizeof(T); line += 64)
        __builtin_prefetch(reinterpret_cast<const std::byte*>(address) + 1024 + line);
#endif
}

}  // namespace simt
