// math.cuh: elementary functions that g++ can vectorise; on the GPU they are CUDA's own
#pragma once
#include <cstdint>

#include "kernels/simt/target.h"

namespace simt {

constexpr float log2_e = 1.44269504088896341f;  // e^x = 2^(x log2_e)

// exp(x) within 2 units in the last place; 0 below -103.97, infinity above 88.72, NaN stays NaN.
__device__ __forceinline__ float exp(float x) {
#ifdef __CUDACC__
    return expf(x);
#else
    // x = n ln2 + r with |r| <= ln2 / 2. ln2 is split into two parts (Cody and Waite); e^r is a minimax
    // polynomial (expf of Cephes).
    constexpr float lowest = -104.0f, highest = 89.0f;
    x = x < lowest ? lowest : x;
    x = x > highest ? highest : x;
    constexpr float shift = 0x1.8p23f;  // adding it rounds to an integer, which is then in the low bits
    const float shifted = x * log2_e + shift;
    const float n = shifted - shift;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    // 2^n as two factors, so that results below the normal range and at its upper end are right.
    const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(shift);
    const int32_t half = exponent >> 1;
    const float scale1 = std::bit_cast<float>((half + 127) << 23);
    const float scale2 = std::bit_cast<float>((exponent - half + 127) << 23);
    return p * scale1 * scale2;
#endif
}

// exp(x) for x <= 0, as in a softmax whose maximum was subtracted, within 1 unit in the last place.
// Results below the normal range (x < -87.68) are 0. On the CPU it takes two thirds of exp's
// instructions: GELU and softmax run 1.4 to 1.7 times as fast.
__device__ __forceinline__ float exp_nonpositive(float x) {
#ifdef __CUDACC__
    return expf(x);
#else
    // at this x the exponent field becomes 0, and so does the factor 2^n
    constexpr float lowest = -88.02f;
    constexpr float shift = 0x1.8p23f + 127.0f;  // as in exp, with the exponent's bias
    x = x < lowest ? lowest : x;
    const float shifted = x * log2_e + shift;
    const float n = shifted - shift;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * std::bit_cast<float>(std::bit_cast<uint32_t>(shifted) << 23);
#endif
}

// The bits of x: sign, exponent, mantissa.
__device__ __forceinline__ uint32_t float_bits(float x) {
#ifdef __CUDACC__
    return __float_as_uint(x);
#else
    return std::bit_cast<uint32_t>(x);
#endif
}

// 2^x within a factor of 1 +- 2^-22, one instruction of the GPU (PTX: ex2.approx.ftz). Results below the
// normal range are 0.
__device__ __forceinline__ float exp2(float x) {
#ifdef __CUDACC__
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    const float result = ::exp2f(x);
    return result < 0x1p-126f ? 0.0f : result;
#endif
}

// exp_nonpositive for kernels that should be bound by memory: two instructions instead of eight on the
// GPU (PTX: ex2.approx.ftz), within a factor of 1 +- (2^-22 + 1.3 |x| 2^-24). The error is little more
// than x itself has when a maximum was subtracted.
__device__ __forceinline__ float quick_exp_nonpositive(float x) {
#ifdef __CUDACC__
    return exp2(x * log2_e);
#else
    return exp_nonpositive(x);
#endif
}

// a / b for b from 2^-126 to 2^126, within 2 units in the last place: two instructions instead of ten on
// the GPU.
__device__ __forceinline__ float quick_divide(float a, float b) {
#ifdef __CUDACC__
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

// a * b + c, rounded once. Where the processor has no such instruction, g++ fuses nothing, so this is rounded
// twice: with fmaf, which is then a function, AdamW would take five times as long.
__device__ __forceinline__ float fused_multiply_add(float a, float b, float c) {
#ifndef __CUDACC__
    if constexpr (!cpu_multiply_adds) return a * b + c;
#endif
    return fmaf(a, b, c);
}

// The larger of a and b; b if a is NaN. b must not be NaN. One instruction on both machines.
__device__ __forceinline__ float larger(float a, float b) {
#ifdef __CUDACC__
    return fmaxf(a, b);
#else
    return a > b ? a : b;
#endif
}

__device__ __forceinline__ float log(float x) { return logf(x); }
__device__ __forceinline__ float sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ float rsqrt(float x) {
#ifdef __CUDACC__
    return rsqrtf(x);
#else
    return 1.0f / sqrtf(x);
#endif
}

// sigmoid(z) = 1 / (1 + e^-z), and 1 - sigmoid(z). Both follow from e = exp(-|z|) without cancellation, and
// nothing overflows.
struct Sigmoids {
    float value, rest;
    __device__ __forceinline__ explicit Sigmoids(float z) {
        const float e = quick_exp_nonpositive(-fabsf(z)), inverse = quick_divide(1.0f, 1.0f + e);
        value = z < 0.0f ? e * inverse : inverse;
        rest = z < 0.0f ? inverse : e * inverse;
    }
};

}  // namespace simt
