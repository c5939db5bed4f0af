// decode_matmul.cuh: out (K, OC) = scales * (inp (K, C) weight (OC, C)^T) + bias, for a few rows K, as when
// text is generated a token at a time
//   weight: float, bfloat16, or int8 with scales (OC) fp32 (quantize.cuh), converted to float on its way into
//   the product
//   bias (OC). scales and bias may be nullptr: 1 and 0. With gelu, out = gelu(the product as T rounds it),
//   which is what training stores (gemm.h). Sums in fp32.
//
// What it costs is reading the weights, so each is read from memory once, whatever K: W::threads share a few
// rows of the weight, whose products with a few rows of inp (`samples`) are summed in registers; more samples
// than that go over the same rows again, in the first-level cache.
//   GPU: a warp has 4 rows, loads 16 bytes of each a lane, and adds up every product by a shuffle tree.
//   CPU: a thread has 16 rows, 4 at a time (one, if a sum is all the registers hold). A sum is a Vec; those
//   of 16 rows are transposed, and added up and finished as Vecs. The 4 rows of the next but one group are
//   prefetched: four streams, each as short as a row, are too much for the hardware's
//   prefetcher (bf16: 7 to 9 GB/s on a core that reads 11 in a plain loop; with it 11).
#pragma once
#include <algorithm>

#include "kernels/common.cuh"
#include "kernels/gelu.cuh"
#include "kernels/simt/products.cuh"

namespace decode_matmul_detail {

template <class W, class Weight, int Samples, bool Vectors>
struct Cut {
    static constexpr bool one_thread = W::threads == 1;
    static_assert(one_thread || W::threads == simt::warp_size, "a warp's lanes store what it computed");
    static constexpr int samples = Samples;
    static constexpr int rows = one_thread ? 16 : 4;  // of the weight
    static constexpr int rows_at_once = one_thread ? std::clamp(simt::cpu_register_sums / Samples, 1, 4) : 4;
    // loaded at once
    static constexpr int columns = !Vectors ? 1 : one_thread ? 16 : W::bytes / sizeof(Weight);
    // elements of a sum
    static constexpr int lanes = one_thread ? columns : 1;
    static constexpr int prefetched_rows = one_thread && Vectors ? 2 * rows_at_once : 0;
    // on the CPU a thread has work for a block, by which the cores are balanced
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
    bool gelu;
};

// sums[r][s] = the products of rows row + r and samples sample + s over the columns of this lane. Past the
// last row or sample, the last one again.
template <class W, class Cut, class T, class Weight>
__device__ __forceinline__ void multiply(typename Cut::Sum (&sums)[Cut::rows_at_once][Cut::samples],
                                         const Operands<T>& operands, const Weight* weight, size_t row,
                                         int sample) {
    constexpr int N = Cut::columns, rows = Cut::rows_at_once, samples = Cut::samples;
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
        for (int s = 0; s < samples; s++) sums[r][s] = simt::broadcast<Cut::lanes>(0.0f);
    }
    for (int c = simt::row_lane<W::threads>() * N; c < C; c += W::threads * N) {
        Vec<float, N> x[samples];
        UNROLL_REGISTERS
        for (int s = 0; s < samples; s++) x[s] = simt::load_factors<N>(of_sample[s] + c);
        UNROLL_REGISTERS
        for (int r = 0; r < rows; r++) {
            const Vec<float, N> w = simt::load_factors<N>(of_row[r] + c);
            if constexpr (Cut::prefetched_rows > 0) {
                constexpr int line = 64 / sizeof(Weight);
                if (c % line == 0)
                    simt::prefetch(of_row[r] + c + static_cast<size_t>(Cut::prefetched_rows) * C);
            }
            UNROLL_REGISTERS
            for (int s = 0; s < samples; s++) simt::multiply_add(sums[r][s], w, x[s]);
        }
    }
}

// out[sample][row] from its product
template <class T>
__device__ __forceinline__ void finish(T* out, float product, const Operands<T>& operands, size_t row,
                                       int sample) {
    if (operands.scales) product *= operands.scales[row];
    if (operands.bias) product += static_cast<float>(operands.bias[row]);
    if (operands.gelu) product = gelu(static_cast<float>(T(product)));
    out[static_cast<size_t>(sample) * operands.OC + row] = T(product);
}

// The CPU's: of_row[r] holds what row + r has summed up with a sample; all of these rows at once, unless the
// last of them lie beyond OC.
template <class Cut, class T>
__device__ __forceinline__ void finish_rows(T* out, const typename Cut::Sum (&of_row)[Cut::rows],
                                            const Operands<T>& operands, size_t row, int sample) {
    constexpr int rows = Cut::rows;
    if constexpr (Cut::lanes == rows) {
        if (row + rows <= operands.OC) {
            Vec<float, rows> of_lane[rows];
            simt::transpose(of_lane, of_row);
            UNROLL_REGISTERS
            for (int half = rows / 2; half > 0; half /= 2) {
                for (int l = 0; l < half; l++) {
                    for (int r = 0; r < rows; r++) of_lane[l][r] += of_lane[l + half][r];
                }
            }
            Vec<float, rows>& product = of_lane[0];
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

template <class W, class Cut, class T, class Weight>
__global__ void kernel(T* out, Operands<T> operands, const Weight* weight) {
    constexpr int samples = Cut::samples, rows_at_once = Cut::rows_at_once;
    const size_t row = simt::row_index<W::threads>() * Cut::rows;
    for (int sample = 0; sample < operands.K; sample += samples) {
        typename Cut::Sum sums[rows_at_once][samples];
        if constexpr (Cut::one_thread) {
            typename Cut::Sum of_sample[samples][Cut::rows];
            for (int first = 0; first < Cut::rows; first += rows_at_once) {
                multiply<W, Cut>(sums, operands, weight, row + first, sample);
                for (int r = 0; r < rows_at_once; r++) {
                    for (int s = 0; s < samples; s++) of_sample[s][first + r] = sums[r][s];
                }
            }
            for (int s = 0; s < samples && sample + s < operands.K; s++)
                finish_rows<Cut>(out, of_sample[s], operands, row, sample + s);
        } else {
            const int lane = simt::row_lane<W::threads>(), r_of_lane = lane / samples,
                      s_of_lane = lane % samples;
            multiply<W, Cut>(sums, operands, weight, row, sample);
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

// Calls body(Cut) with the cut for that many samples and columns.
template <class W, class Weight, class Body>
void for_cut(size_t K, size_t C, Body body) {
    const auto with_samples = [&](auto samples) {
        using Wide = Cut<W, Weight, samples(), true>;
        if (C % Wide::columns == 0) body(Wide{});
        else body(Cut<W, Weight, samples(), false>{});
    };
    if (K == 1) with_samples(std::integral_constant<int, 1>{});
    else if (K == 2) with_samples(std::integral_constant<int, 2>{});
    else with_samples(std::integral_constant<int, 4>{});
}

}  // namespace decode_matmul_detail

struct DecodeMatmulShape {
    size_t K, C, OC;
};

// Reads OC * C weights; bound by memory bandwidth up to a K of 4 to 8, by arithmetic beyond.
template <class W = simt::NativeWidth<32>, class T, class Weight>
void decode_matmul(T* out, const T* inp, const Weight* weight, const float* scales, const T* bias,
                   DecodeMatmulShape shape, bool gelu, stream_t stream) {
    using namespace decode_matmul_detail;
    const auto [K, C, OC] = shape;
    CHECK(K > 0 && C > 0 && OC > 0, "decode_matmul: K = {}, C = {} and OC = {} must be positive", K, C, OC);
    const Operands<T> operands{inp, scales, bias, static_cast<int>(K), static_cast<int>(C), OC, gelu};
    for_cut<W, Weight>(K, C, [&](auto cut) {
        using Cut = decltype(cut);
        const size_t rows_of_block = Cut::block / W::threads * Cut::rows;
        launch(kernel<W, Cut, T, Weight>, static_cast<unsigned>(ceil_div(operands.OC, rows_of_block)),
               Cut::block, 0, stream, out, operands, weight);
    });
}
