// cpu_lanes.h: a register of the CPU as one of g++'s vectors, and operations on it for which some processors
//   have one instruction
#pragma once
#include <array>
#include <bit>
#include <cstdint>

#include "kernels/simt/target.h"
#ifdef __SSE__
#include <immintrin.h>
#endif

namespace simt {

constexpr int cpu_lanes = cpu_vector_bytes / sizeof(float);

// g++'s vector types, for any address
typedef float Lanes __attribute__((vector_size(cpu_lanes * sizeof(float)), aligned(4), may_alias));
typedef uint32_t LaneBits __attribute__((vector_size(cpu_lanes * sizeof(float)), aligned(4), may_alias));
typedef uint16_t HalfBits __attribute__((vector_size(cpu_lanes * sizeof(uint16_t)), aligned(2), may_alias));

// factor * x + sum in every lane, rounded once where the processor can. In a plain expression the compiler
// chooses what it fuses, and may choose differently for each copy of the code, whose bits then differ.
inline Lanes fused(Lanes factor, Lanes x, Lanes sum) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(factor, x, sum);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(factor, x, sum);
#else
    return factor * x + sum;
#endif
}

// The bits of every lane as bfloat16, rounded as its constructor does. AVX512_BF16's instruction takes
// numbers below 2^-126 for zero.
inline HalfBits round_to_bf16(Lanes values) {
#ifdef __AVX512BF16__
    return reinterpret_cast<HalfBits>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(values)));
#else
    const LaneBits bits = reinterpret_cast<LaneBits>(values);
    const LaneBits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet_nan = (bits >> 16) | 0x40;
    return __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded, HalfBits);
#endif
}
// The same of two registers, as one. If it were stored as halves, a load of the whole would wait for both.
inline LaneBits round_to_bf16(Lanes low, Lanes high) {
#ifdef __AVX512BF16__
    return reinterpret_cast<LaneBits>(
        _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low)));
#else
    return std::bit_cast<LaneBits>(std::array{round_to_bf16(low), round_to_bf16(high)});
#endif
}

}  // namespace simt
