// decode_matmul.cuh: out (K, OC) = scales * (inp (K, C) weight (OC, C)^T) + bias, for few rows K, as
//   when text is generated one token at a time
//   weight: float, bfloat16, or int8 with scales (OC) fp32 (quantize.cuh); converted to float within the
//   product
//   bias (OC). scales = nullptr means 1, bias = nullptr means 0. With an activation, out =
//   activation(the product rounded to T), because training stores the rounded product (gemm.h). Sums are
//   fp32.
//
// The cost is reading the weights, so each weight is read from memory once, whatever K is. W::threads
// threads share a few rows of the weight, and sum their products with a few rows of inp (`samples`) in
// registers. For more samples than that, the same rows are read again, from the first-level cache.
//   GPU: a warp has 2 rows, or 4 for several samples. A lane begins eight loads of 16 bytes, four or two a
//   row, before it uses the first. Every product is summed by a shuffle tree.
//   CPU: a thread has 16 rows and reads them one after the other, so that the weights are one stream, which
//   is prefetched. (Four rows side by side, as short as GPT-2's, are four streams that end too soon for the
//   hardware's prefetcher: bf16 had 15 GB/s of the 20 of a plain loop.) A cache line of weights has as many
//   sums as fit into the registers, because one alone would wait for each of its additions.
#pragma once
#include <algorithm>

#include "kernels/activation.h"
#include "kernels/common.cuh"
#include "kernels/gelu.cuh"
#include "kernels/simt/products.cuh"

namespace decode_matmul_detail {

// Columns: elements of a row that are loaded at once.
template <class W, class Weight, int Samples, int Columns>
struct Tiling {
    static constexpr bool one_thread = W::threads == 1;
    static_assert(one_thread || W::threads == simt::warp_size, "a warp's lanes store what it computed");
    static constexpr int samples = Samples, columns = Columns;
    // rows of the weight
    static constexpr int rows = one_thread ? 16 : Samples == 1 ? 2 : 4, rows_at_once = one_thread ? 1 : rows;
    static constexpr int ahead = 8 / rows;  // GPU: vectors of each row whose loads are under way at once
    // floats of a sum
    static constexpr int lanes = one_thread ? columns : 1;
    // on the CPU a block is one thread, so that the blocks balance the cores
    static constexpr unsigned block = one_thread ? 1 : 128;
    using Sum = Vec<float, lanes>;
};

template <class T>
struct Operands {
    const T* inp;
    const float* scales;
    const T* bias;
    int K, C;
    size_t OC;
    bool gelu;  // decided by the host: the kernel that compares an Activation takes up to 12 registers more
};

// sums[r][s] = the products of rows row + r and samples sample + s over the columns of this lane. Beyond
// the last row or sample, the last one is used again.
template <class W, class Tiling, class T, class Weight>
__device__ __forceinline__ void multiply(typename Tiling::Sum (&sums)[Tiling::rows_at_once][Tiling::samples],
                                         const Operands<T>& operands, const Weight* weight, size_t row,
                                         int sample) {
    constexpr int N = Tiling::columns, rows = Tiling::rows_at_once, samples = Tiling::samples;
    const int C = operands.C;
    const Weight* of_row[rows];
    const T* of_sample[samples];
    UNROLL_REGISTERS
    for (int r = 0; r < rows; r++) of_row[r] = weight + min(row + r, operands.OC - 1) * C;
    UNROLL_REGISTERS
    for (int s = 0; s < samples; s++)
        of_sample[s] = operands.inp + static_cast<size_t>(min(sample + s, operands.K - 1)) * C;
    UNROLL_REGISTERS
    for (int r = 0; r < rows; r++) {
        UNROLL_REGISTERS
        for (int s = 0; s < samples; s++) sums[r][s] = simt::broadcast<Tiling::lanes>(0.0f);
    }
    const auto add = [&](int c, auto weights_of_row) INLINE {
        Vec<float, N> x[samples];
        UNROLL_REGISTERS
        for (int s = 0; s < samples; s++) x[s] = simt::load_factors<N>(of_sample[s] + c);
        UNROLL_REGISTERS
        for (int r = 0; r < rows; r++) {
            const Vec<float, N> w = weights_of_row(r);
            UNROLL_REGISTERS
            for (int s = 0; s < samples; s++) simt::multiply_add(sums[r][s], w, x[s]);
        }
    };
    if constexpr (Tiling::one_thread) {
        for (int c = 0; c < C; c += N) {
            simt::prefetch_ahead<N>(of_row[0] + c);
            add(c, [&](int r) INLINE { return simt::load_factors<N>(of_row[r] + c); });
        }
    } else {
        constexpr int ahead = Tiling::ahead, step = W::threads * N;
        for (int begin = simt::row_lane<W::threads>() * N; begin < C; begin += ahead * step) {
            Vec<Weight, N> held[ahead][rows] = {};
            UNROLL
            for (int u = 0; u < ahead; u++) {
                UNROLL
                for (int r = 0; r < rows; r++) {
                    simt::one_at_a_time();
                    if (begin + u * step < C) held[u][r] = load_raw<N>(of_row[r] + begin + u * step);
                }
            }
            UNROLL
            for (int u = 0; u < ahead; u++) {
                simt::one_at_a_time();
                if (begin + u * step < C)
                    add(begin + u * step, [&](int r) INLINE { return widen(held[u][r]); });
            }
        }
    }
}

// out[sample][row] = the finished product
template <class T>
__device__ __forceinline__ void finish(T* out, float product, const Operands<T>& operands, size_t row,
                                       int sample) {
    if (operands.scales) product *= operands.scales[row];
    if (operands.bias) product += static_cast<float>(operands.bias[row]);
    if (operands.gelu) product = gelu(static_cast<float>(T(product)));
    out[static_cast<size_t>(sample) * operands.OC + row] = T(product);
}

// For the CPU: of_row[r] holds the sums of row row + r with one sample. Finishes all these rows at once,
// unless some of them lie beyond OC.
template <class Tiling, class T>
__device__ __forceinline__ void finish_rows(T* out, const typename Tiling::Sum (&of_row)[Tiling::rows],
                                            const Operands<T>& operands, size_t row, int sample) {
    constexpr int rows = Tiling::rows;
    if constexpr (Tiling::lanes >= rows) {
        if (row + rows <= operands.OC) {
            Vec<float, rows> product = simt::sums_of_rows(of_row);
            if (operands.scales) {
                for (int r = 0; r < rows; r++) product[r] *= operands.scales[row + r];
            }
            if (operands.bias) {
                for (int r = 0; r < rows; r++) product[r] += static_cast<float>(operands.bias[row + r]);
            }
            if (operands.gelu) {
                for (int r = 0; r < rows; r++) product[r] = gelu(static_cast<float>(T(product[r])));
            }
            T* to = out + static_cast<size_t>(sample) * operands.OC + row;
            for (int r = 0; r < rows; r++) to[r] = T(product[r]);
            return;
        }
    }
    for (int r = 0; r < rows && row + r < operands.OC; r++)
        finish(out, simt::sum(of_row[r]), operands, row + r, sample);
}

template <class W, class Tiling, class T, class Weight>
__global__ void kernel(T* out, Operands<T> operands, const Weight* weight) {
    constexpr int samples = Tiling::samples, rows_at_once = Tiling::rows_at_once;
    const size_t row = simt::row_index<W::threads>() * Tiling::rows;
    for (int sample = 0; sample < operands.K; sample += samples) {
        typename Tiling::Sum sums[rows_at_once][samples];
        if constexpr (Tiling::one_thread) {
            typename Tiling::Sum of_sample[samples][Tiling::rows];
            for (int first = 0; first < Tiling::rows; first += rows_at_once) {
                multiply<W, Tiling>(sums, operands, weight, row + first, sample);
                for (int r = 0; r < rows_at_once; r++) {
                    for (int s = 0; s < samples; s++) of_sample[s][first + r] = sums[r][s];
                }
            }
            for (int s = 0; s < samples && sample + s < operands.K; s++)
                finish_rows<Tiling>(out, of_sample[s], operands, row, sample + s);
        } else {
            const int lane = simt::row_lane<W::threads>(), r_of_lane = lane / samples,
                      s_of_lane = lane % samples;
            multiply<W, Tiling>(sums, operands, weight, row, sample);
            float product = 0.0f;  // of the row and the sample that this lane finishes
            UNROLL
            for (int r = 0; r < rows_at_once; r++) {
                UNROLL
                for (int s = 0; s < samples; s++) {
                    const float total = simt::row_sum<W::threads>(sums[r][s][0]);
                    product = r == r_of_lane && s == s_of_lane ? total : product;
                }
            }
            if (r_of_lane < rows_at_once && row + r_of_lane < operands.OC && sample + s_of_lane < operands.K)
                finish(out, product, operands, row + r_of_lane, sample + s_of_lane);
        }
    }
}

// Calls body(Tiling) with the Tiling for K samples and C columns. The order of a sum does not depend on K.
template <class W, class Weight, class Body>
void for_tiling(size_t K, size_t C, Body body) {
    constexpr bool one_thread = W::threads == 1;
    // CPU: a cache line of weights, or half of the registers full of sums
    constexpr int columns = one_thread ? 16 : W::bytes / sizeof(Weight), line = 64 / sizeof(Weight),
                  wide = one_thread ? std::min(line, columns * simt::cpu_register_sums / 2) : columns,
                  most_samples = one_thread ? std::min(4, columns * simt::cpu_register_sums / wide) : 4;
    const auto with_samples = [&](auto samples) {
        if (C % wide == 0) body(Tiling<W, Weight, samples(), wide>{});
        else if (wide > columns && C % columns == 0) body(Tiling<W, Weight, samples(), columns>{});
        else body(Tiling<W, Weight, samples(), 1>{});
    };
    if (K == 1) with_samples(std::integral_constant<int, 1>{});
    else if (K == 2) with_samples(std::integral_constant<int, 2>{});
    else with_samples(std::integral_constant<int, most_samples>{});
}

}  // namespace decode_matmul_detail

struct DecodeMatmulShape {
    size_t K, C, OC;
};

// Reads OC * C weights; bound by memory bandwidth for K up to 4 to 8, by arithmetic beyond.
template <class W = simt::NativeWidth<32>, class T, class Weight>
void decode_matmul(T* out, const T* inp, const Weight* weight, const float* scales, const T* bias,
                   DecodeMatmulShape shape, Activation activation, stream_t stream) {
    using namespace decode_matmul_detail;
    const auto [K, C, OC] = shape;
    CHECK(K > 0 && C > 0 && OC > 0, "decode_matmul: K = {}, C = {} and OC = {} must be positive", K, C, OC);
    const Operands<T> operands{
        inp, scales, bias, static_cast<int>(K), static_cast<int>(C), OC, activation == Activation::gelu};
    for_tiling<W, Weight>(K, C, [&](auto tiling) {
        using Tiling = decltype(tiling);
        const size_t rows_of_block = Tiling::block / W::threads * Tiling::rows;
        launch(kernel<W, Tiling, T, Weight>, static_cast<unsigned>(ceil_div(operands.OC, rows_of_block)),
               Tiling::block, 0, stream, out, operands, weight);
    });
}
