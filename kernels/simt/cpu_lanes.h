// cpu_lanes.h: operations on g++'s vectors of cpu_vector_bytes for which some processors have one instruction
#pragma once
#include <cstdint>

#include "kernels/simt/target.h"
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace simt {

// factor * x + sum in every lane, rounded once where the processor can. In a plain expression the compiler
// chooses what it fuses, and may choose differently for each copy of the code, whose bits then differ.
template <class Floats>
inline Floats fused(Floats factor, Floats x, Floats sum) {
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
template <class HalfWords, class Words, class Floats>
inline HalfWords round_to_bf16(Floats values) {
#ifdef __AVX512BF16__
    return reinterpret_cast<HalfWords>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(values)));
#else
    const Words bits = reinterpret_cast<Words>(values);
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, quiet_nan = (bits >> 16) | 0x40;
    return __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded, HalfWords);
#endif
}

}  // namespace simt
