// bf16_pairs.h: sum + low(x) low(y) + high(x) high(y) in every lane, whose words hold two bfloat16 each
//   Processors with AVX512_BF16 have one instruction for it, which takes numbers below 2^-126 for zero. On
//   others it is plain arithmetic of the same meaning, with which tests run.
#pragma once
#include "kernels/simt/cpu_lanes.h"

namespace simt {

#ifdef __AVX512BF16__
constexpr bool has_bf16_pairs = true;
#else
constexpr bool has_bf16_pairs = false;
#endif

inline Lanes add_pairs(Lanes sum, LaneBits x, LaneBits y) {
#ifdef __AVX512BF16__
    return reinterpret_cast<Lanes>(_mm512_dpbf16_ps(
        reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y)));
#else
    sum += reinterpret_cast<Lanes>(x << 16) * reinterpret_cast<Lanes>(y << 16);
    const LaneBits high = LaneBits{} + 0xffff0000u;
    return sum + reinterpret_cast<Lanes>(x & high) * reinterpret_cast<Lanes>(y & high);
#endif
}

}  // namespace simt
