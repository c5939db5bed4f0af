// vec_products.cuh: the inner loops of matrix products over Vecs
#pragma once
#include "kernels/simt/vec_sums.cuh"

namespace simt {

// sum += factor * v, the innermost line of a matrix product. On the CPU it is an explicit vector
// instruction, so that an array of sums stays in registers: 180 GFLOP/s a core. The vectoriser reaches 8
// to 190, depending on the shape of the surrounding loops.
template <int N>
__device__ __forceinline__ void multiply_add(Vec<float, N>& sum, float factor, const Vec<float, N>& v) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (N % cpu_lanes == 0) {
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += cpu_lanes)
            *reinterpret_cast<Native*>(sum.x + i) += factor * *reinterpret_cast<const Native*>(v.x + i);
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < N; i++) sum[i] += factor * v[i];
}

#ifndef __CUDACC__
namespace detail {
// Keeps x in a register. With AVX2 g++ 12 would read it from memory again for each of its uses.
__forceinline__ void in_register([[maybe_unused]] Native& x) {
#ifdef __AVX__
    asm("" : "+v"(x));
#endif
}
}  // namespace detail
#endif

// sums[r] += factors[r * stride] * v
template <int Rows, int N>
__device__ __forceinline__ void multiply_add(Vec<float, N> (&sums)[Rows], const float* factors, int stride,
                                             const Vec<float, N>& v) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (N % cpu_lanes == 0) {
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += cpu_lanes) {
            Native part = *reinterpret_cast<const Native*>(v.x + i);
            in_register(part);
            UNROLL_REGISTERS
            for (int r = 0; r < Rows; r++)
                *reinterpret_cast<Native*>(sums[r].x + i) += factors[r * stride] * part;
        }
        return;
    }
#endif
    UNROLL
    for (int r = 0; r < Rows; r++) multiply_add(sums[r], factors[r * stride], v);
}

// sum += a * b, element by element. If the sum is shorter than a and b (S < N), its element i adds up
// the products i, i + S, i + 2 S, ...
template <int S, int N>
__device__ __forceinline__ void multiply_add(Vec<float, S>& sum, const Vec<float, N>& a,
                                             const Vec<float, N>& b) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (S % cpu_lanes == 0) {
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += cpu_lanes) {
            *reinterpret_cast<Native*>(sum.x + i % S) +=
                *reinterpret_cast<const Native*>(a.x + i) * *reinterpret_cast<const Native*>(b.x + i);
        }
        return;
    }
#endif
    // As an expression, g++ would decide for each loop whether a product is rounded before it is added.
    UNROLL
    for (int i = 0; i < N; i++) sum[i % S] = fmaf(a[i], b[i], sum[i % S]);
}

// columns[c][r] = rows[r][c]
template <int R, int C>
__device__ __forceinline__ void transpose(Vec<float, R> (&columns)[C], const Vec<float, C> (&rows)[R]) {
#ifndef __CUDACC__
    using namespace detail;
    if constexpr (R % cpu_lanes == 0 && C % cpu_lanes == 0) {
        // Rounds, each of which interleaves the lower and the upper half of the rows, as one riffles cards.
        constexpr auto from = [](int lane) { return lane % 2 * cpu_lanes + lane / 2; };
        constexpr int half = cpu_lanes / 2;
        UNROLL_REGISTERS
        for (int block = 0; block < R * C; block += cpu_lanes * cpu_lanes) {
            const int r = block / cpu_lanes % R, c = block / cpu_lanes / R * cpu_lanes;
            Native deck[cpu_lanes], shuffled[cpu_lanes];
            UNROLL_REGISTERS
            for (int i = 0; i < cpu_lanes; i++) deck[i] = *reinterpret_cast<const Native*>(rows[r + i].x + c);
            UNROLL_REGISTERS
            for (int round = 1; round < cpu_lanes; round *= 2) {
                UNROLL_REGISTERS
                for (int i = 0; i < half; i++) {
                    shuffled[2 * i] = shuffle<0>(deck[i], deck[i + half], from);
                    shuffled[2 * i + 1] = shuffle<half>(deck[i], deck[i + half], from);
                }
                UNROLL_REGISTERS
                for (int i = 0; i < cpu_lanes; i++) deck[i] = shuffled[i];
            }
            UNROLL_REGISTERS
            for (int i = 0; i < cpu_lanes; i++) *reinterpret_cast<Native*>(columns[c + i].x + r) = deck[i];
        }
        return;
    }
#endif
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int c = 0; c < C; c++) columns[c][r] = rows[r][c];
    }
}

}  // namespace simt
