// bf16_pairs.h: sum + low(x) low(y) + high(x) high(y) in every lane, whose words hold two bfloat16 each
//   Processors with AVX512_BF16 have one instruction for it, which takes numbers below 2^-126 for zero. On
//   others it is plain arithmetic of the same meaning, with which tests run.
#pragma once
#include <cstdint>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace simt {

#ifdef __AVX512BF16__
constexpr bool has_bf16_pairs = true;
#else
constexpr bool has_bf16_pairs = false;
#endif

// Floats and Words are g++'s vectors of as many lanes.
template <class Floats, class Words>
inline Floats add_pairs(Floats sum, Words x, Words y) {
#ifdef __AVX512BF16__
    static_assert(sizeof(Floats) == 64);
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(
        reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y)));
#else
    sum += reinterpret_cast<Floats>(x << 16) * reinterpret_cast<Floats>(y << 16);
    const Words high = Words{} + 0xffff0000u;
    return sum + reinterpret_cast<Floats>(x & high) * reinterpret_cast<Floats>(y & high);
#endif
}

}  // namespace simt
