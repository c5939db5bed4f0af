// vec_products.cuh: the inner loops of matrix products over Vecs
#pragma once
#include "kernels/simt/vec.cuh"

namespace simt {

// sum += factor * v, the innermost line of a matrix product. On the CPU it is an explicit vector
// instruction, so that an array of sums stays in registers: 180 GFLOP/s a core. The vectoriser reaches 8
// to 190, depending on the shape of the surrounding loops.
template <int N>
__device__ __forceinline__ void multiply_add(Vec<float, N>& sum, float factor, const Vec<float, N>& v) {
#ifndef __CUDACC__
    constexpr int lanes = cpu_vector_bytes / sizeof(float);
    if constexpr (N % lanes == 0) {
        typedef float Native __attribute__((vector_size(cpu_vector_bytes), may_alias));
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += lanes)
            *reinterpret_cast<Native*>(sum.x + i) += factor * *reinterpret_cast<const Native*>(v.x + i);
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < N; i++) sum[i] += factor * v[i];
}

// sum += a * b, element by element. If the sum is shorter than a and b (S < N), its element i adds up
// the products i, i + S, i + 2 S, ...
template <int S, int N>
__device__ __forceinline__ void multiply_add(Vec<float, S>& sum, const Vec<float, N>& a,
                                             const Vec<float, N>& b) {
#ifndef __CUDACC__
    constexpr int lanes = cpu_vector_bytes / sizeof(float);
    if constexpr (S % lanes == 0) {
        typedef float Native __attribute__((vector_size(cpu_vector_bytes), may_alias));
        UNROLL_REGISTERS
        for (int i = 0; i < N; i += lanes) {
            *reinterpret_cast<Native*>(sum.x + i % S) +=
                *reinterpret_cast<const Native*>(a.x + i) * *reinterpret_cast<const Native*>(b.x + i);
        }
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < N; i++) sum[i % S] += a[i] * b[i];
}

// columns[c][r] = rows[r][c]
template <int R, int C>
__device__ __forceinline__ void transpose(Vec<float, R> (&columns)[C], const Vec<float, C> (&rows)[R]) {
#ifndef __CUDACC__
    if constexpr (R == 16 && C == 16 && cpu_vector_bytes == 64) {
        // Four rounds, each of which interleaves the lower and the upper half of the rows, as one
        // riffles cards.
        typedef float Native __attribute__((vector_size(64), may_alias));
        Native deck[16], shuffled[16];
        UNROLL_REGISTERS
        for (int i = 0; i < 16; i++) deck[i] = *reinterpret_cast<const Native*>(rows[i].x);
        UNROLL_REGISTERS
        for (int round = 0; round < 4; round++) {
            UNROLL_REGISTERS
            for (int i = 0; i < 8; i++) {
#if __has_builtin(__builtin_shufflevector)
                shuffled[2 * i] = __builtin_shufflevector(deck[i], deck[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4,
                                                          20, 5, 21, 6, 22, 7, 23);
                shuffled[2 * i + 1] = __builtin_shufflevector(deck[i], deck[i + 8], 8, 24, 9, 25, 10, 26, 11,
                                                              27, 12, 28, 13, 29, 14, 30, 15, 31);
#else  // g++ 11
                typedef int Places __attribute__((vector_size(64)));
                shuffled[2 * i] = __builtin_shuffle(
                    deck[i], deck[i + 8], Places{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
                shuffled[2 * i + 1] =
                    __builtin_shuffle(deck[i], deck[i + 8],
                                      Places{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
#endif
            }
            UNROLL_REGISTERS
            for (int i = 0; i < 16; i++) deck[i] = shuffled[i];
        }
        UNROLL_REGISTERS
        for (int i = 0; i < 16; i++) *reinterpret_cast<Native*>(columns[i].x) = deck[i];
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
