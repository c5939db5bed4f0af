// bfloat16.h: the upper half of a float, as one type for both machines, so that host code and both
//   compilers agree on it
//   Conversion rounds to nearest even; a NaN stays a NaN.
#pragma once
#include <bit>
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif
#include "kernels/simt/host_device.h"

struct bfloat16 {
    uint16_t bits;

    bfloat16() = default;
    HOST_DEVICE explicit bfloat16(float value) {
#ifdef __CUDA_ARCH__
        bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
        const uint32_t u = std::bit_cast<uint32_t>(value);
        const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        const uint32_t quiet_nan = (u >> 16) | 0x40u;
        bits = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
#endif
    }
    HOST_DEVICE explicit operator float() const {
#ifdef __CUDA_ARCH__
        return __uint_as_float(static_cast<uint32_t>(bits) << 16);
#else
        return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
#endif
    }
};
static_assert(sizeof(bfloat16) == 2);
