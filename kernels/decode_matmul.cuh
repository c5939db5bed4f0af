// decode_matmul.cuh: out (K, OC) = scales * (inp (K, C) weight (OC, C)^T) + bias, for a few rows K, as when text is generated a token at a time
//   weight: float, bfloat16, or int8 with scales (OC) fp32, converted to float on the way into the product; scales may be nullptr (1)
//   bias (OC) may be nullptr. With gelu, out = gelu(rounded product), rounded again: what the training's forward stores (gemm.h).
//   Sums in fp32.
//
// Every weight is read from memory once, whatever K: that is what it costs. W::threads share a few rows of the weight; their products with
// `samples` rows of inp are summed in registers, more samples than that take another pass over weights that are still in the first-level cache.
//   GPU: a warp has 4 rows of the weight, loads 16 bytes a lane, and one shuffle tree adds up each product.
//   CPU: a thread has 16 rows, 4 at a time, 16 columns at a time. A sum is a Vec; the 16 rows' sums are transposed and added up as Vecs.
#pragma once
#include <algorithm>

#include "common.cuh"
#include "gelu.cuh"

namespace decode_matmul_detail {

template <class W, class Q, int Samples>
struct Cut {
    static constexpr bool one_thread = W::threads == 1;
    static constexpr int samples = Samples;                                                               // summed at once
    static constexpr int rows = one_thread ? 16 : 4;                                                      // of the weight, for W::threads
    static constexpr int at_once = one_thread ? std::clamp(simt::cpu_register_sums / Samples, 1, 4) : 4;  // of these rows
    static constexpr int columns = one_thread ? 16 : W::bytes / sizeof(Q);                                // loaded at once
    static constexpr int lanes = one_thread ? 16 : 1;                                                     // elements of a sum
};

// A finished product, as T rounds it.
template <class T>
__device__ __forceinline__ float finish(float product, bool apply_gelu) {
    const float rounded = static_cast<float>(T(product));
    return apply_gelu ? gelu(rounded) : rounded;
}

// sums[r][s] += the products of rows first_row + r with samples first_sample + s over this lane's columns.
template <class W, class Cut, int N, class T, class Q, int Lanes>
__device__ __forceinline__ void add_products(Vec<float, Lanes> (&sums)[Cut::at_once][Cut::samples], const T* const (&inp)[Cut::samples],
                                             const Q* const (&weight)[Cut::at_once], int C, int lane) {
    for (int c = lane * N; c < C; c += W::threads * N) {
        Vec<float, N> x[Cut::samples];
        UNROLL_REGISTERS
        for (int s = 0; s < Cut::samples; s++) x[s] = load<N>(inp[s] + c);
        UNROLL_REGISTERS
        for (int r = 0; r < Cut::at_once; r++) {
            const Vec<float, N> w = load<N>(weight[r] + c);
            UNROLL_REGISTERS
            for (int s = 0; s < Cut::samples; s++) simt::multiply_add(sums[r][s], w, x[s]);
        }
    }
}

template <class W, int Samples, int N, class T, class Q>
__global__ void kernel(T* out, const T* inp, const Q* weight, const float* scales, const T* bias, int K, int C, size_t OC, bool apply_gelu) {
    using Cut = Cut<W, Q, Samples>;
    constexpr int lanes = N == 1 ? 1 : Cut::lanes;
    const int lane = simt::row_lane<W::threads>();
    const size_t first_row = simt::row_index<W::threads>() * Cut::rows;

    for (int first_sample = 0; first_sample < K; first_sample += Samples) {
        const T* sample[Samples];  // beyond the last one, the last one again
        UNROLL
        for (int s = 0; s < Samples; s++) sample[s] = inp + static_cast<size_t>(min(first_sample + s, K - 1)) * C;
        Vec<float, lanes> all_sums[Cut::rows][Samples];
        UNROLL
        for (int r0 = 0; r0 < Cut::rows; r0 += Cut::at_once) {
            Vec<float, lanes> sums[Cut::at_once][Samples];
            const Q* row[Cut::at_once];
            UNROLL_REGISTERS
            for (int r = 0; r < Cut::at_once; r++) {
                row[r] = weight + min(first_row + r0 + r, OC - 1) * C;
                UNROLL_REGISTERS
                for (int s = 0; s < Samples; s++) sums[r][s] = simt::broadcast<lanes>(0.0f);
            }
            add_products<W, Cut, N>(sums, sample, row, C, lane);
            UNROLL_REGISTERS
            for (int r = 0; r < Cut::at_once; r++) {
                UNROLL_REGISTERS
                for (int s = 0; s < Samples; s++) all_sums[r0 + r][s] = sums[r][s];
            }
        }
        if constexpr (Cut::one_thread) {
            constexpr int rows = Cut::rows;
            const bool whole = first_row + rows <= OC;
            UNROLL
            for (int s = 0; s < Samples; s++) {
                if (first_sample + s >= K) break;
                Vec<float, rows> product;
                if constexpr (lanes == rows) {
                    Vec<float, rows> of_row[rows], of_lane[rows];
                    UNROLL_REGISTERS
                    for (int r = 0; r < rows; r++) of_row[r] = all_sums[r][s];
                    simt::transpose(of_lane, of_row);
                    UNROLL_REGISTERS
                    for (int half = rows / 2; half > 0; half /= 2) {
                        for (int l = 0; l < half; l++) {
                            for (int r = 0; r < rows; r++) of_lane[l][r] += of_lane[l + half][r];
                        }
                    }
                    product = of_lane[0];
                } else {
                    for (int r = 0; r < rows; r++) product[r] = all_sums[r][s][0];
                }
                T* to = out + static_cast<size_t>(first_sample + s) * OC + first_row;
                if (whole) {
                    if (scales) {
                        for (int r = 0; r < rows; r++) product[r] *= scales[first_row + r];
                    }
                    if (bias) {
                        for (int r = 0; r < rows; r++) product[r] += static_cast<float>(bias[first_row + r]);
                    }
                    if (apply_gelu) {
                        for (int r = 0; r < rows; r++) product[r] = finish<T>(product[r], true);
                    }
                    for (int r = 0; r < rows; r++) to[r] = T(product[r]);
                } else {
                    for (int r = 0; first_row + r < OC; r++) {
                        const float scaled = product[r] * (scales ? scales[first_row + r] : 1.0f);
                        to[r] = T(finish<T>(scaled + (bias ? static_cast<float>(bias[first_row + r]) : 0.0f), apply_gelu));
                    }
                }
            }
        } else {
            float product = 0.0f;  // of the row and sample that this lane stores
            UNROLL
            for (int r = 0; r < Cut::rows; r++) {
                UNROLL
                for (int s = 0; s < Samples; s++) {
                    const float total = simt::row_sum<W::threads>(all_sums[r][s][0]);
                    if (lane == r * Samples + s) product = total;
                }
            }
            const size_t row = first_row + lane / Samples;
            const int s = first_sample + lane % Samples;
            if (lane < Cut::rows * Samples && row < OC && s < K) {
                const float scaled = product * (scales ? scales[row] : 1.0f);
                out[static_cast<size_t>(s) * OC + row] = T(finish<T>(scaled + (bias ? static_cast<float>(bias[row]) : 0.0f), apply_gelu));
            }
        }
    }
}

}  // namespace decode_matmul_detail

// Reads OC * C weights; bound by memory bandwidth up to a K of about 8 (CPU).
template <class W = simt::NativeWidth<32>, class T, class Q>
void decode_matmul(T* out, const T* inp, const Q* weight, const float* scales, const T* bias, size_t K, size_t C, size_t OC, bool apply_gelu,
                   stream_t stream) {
    using namespace decode_matmul_detail;
    CHECK(K > 0 && C > 0 && OC > 0, "decode_matmul: K = {}, C = {} and OC = {} must be positive", K, C, OC);
    const auto start = [&](auto samples) {
        using Cut = Cut<W, Q, samples()>;
        const size_t items = ceil_div<size_t>(OC, Cut::rows);
        const auto start_with = [&](auto n) {
            const auto function = kernel<W, samples(), n(), T, Q>;
            // A CPU's thread has work enough for a block of its own: the launcher then balances the cores by it.
            const unsigned block = Cut::one_thread ? 1 : 128;
            launch(function, static_cast<unsigned>(ceil_div<size_t>(items, std::max<size_t>(1, block / W::threads))), block, 0, stream, out, inp,
                   weight, scales, bias, static_cast<int>(K), static_cast<int>(C), OC, apply_gelu);
        };
        if (C % Cut::columns == 0) start_with(std::integral_constant<int, Cut::columns>{});
        else start_with(std::integral_constant<int, 1>{});
    };
    if (K == 1) start(std::integral_constant<int, 1>{});
    else if (K == 2) start(std::integral_constant<int, 2>{});
    else start(std::integral_constant<int, 4>{});
}
