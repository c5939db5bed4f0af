// int8_product.h: out (N, OC) = inp (N, C) weight^T + bias on the CPU, for many rows such as a prompt's, with
//   a weight of int8 and a scale for each of its rows (quantize.cuh)
//   inp is rounded to int8, too, in groups of 64 columns with a scale each: max |inp| of the group / 127. An
//   element's error is at most half of that. Rounding normally distributed values costs 0.60 % of their
//   standard deviation (root mean square); a weight, with one scale for 768 columns, loses 0.76 %.
//   The sums within a group are whole numbers, and exact. The groups are added in fp32, in their order: an
//   element's bits depend neither on the number of threads nor on N or OC.
//   As in packed_product.h, whose tiles and blocks these are, the operands are copied into the order in which
//   they are read. Nothing is allocated: the caller provides int8_product_scratch_bytes().
#pragma once
#include <cmath>

#include "kernels/gemm/packed_product.h"
#include "kernels/simt/cpu_lanes.h"
#include "kernels/simt/int8_words.h"

namespace int8_product_detail {

namespace packed = packed_product_detail;
using packed::block_columns, packed::block_rows, packed::lanes, packed::tile_columns, packed::tile_rows;
using packed::Lanes;
using simt::word_elements, simt::WordElement, simt::Words;

constexpr int group_columns = 64, group_words = group_columns / word_elements;
// A strip of the weights has as many words as packed_product's has floats.
constexpr size_t depth = packed::depth * word_elements;  // columns
static_assert(depth % group_columns == 0);

inline size_t groups_of(size_t C) { return simt::ceil_div<size_t>(C, group_columns); }

// A group of the rows of a tile, in the order in which their product reads it.
struct alignas(64) TileGroup {
    int32_t x[group_words][tile_rows];
    int32_t compensation[tile_rows];  // int8_words.h
    float scales[tile_rows];
};

struct Scratch {                                                // of one thread
    alignas(64) int32_t weights[tile_columns * packed::depth];  // a strip
    alignas(64) float sums[block_rows * block_columns];         // over the ranges of C so far
};

// q = the first `count` elements of x, at most a group, and zeros behind them. Returns the scale; NaN, and q
// is zero, if an element is not finite. Elements too small for 127 / largest to be finite become zero.
template <class T>
float quantize(WordElement (&q)[group_columns], const T* x, size_t count) {
    float values[group_columns] = {};
    if (count >= group_columns) {  // a loop of constant length is faster
        for (int i = 0; i < group_columns; i++) values[i] = static_cast<float>(x[i]);
    } else {
        for (size_t i = 0; i < count; i++) values[i] = static_cast<float>(x[i]);
    }
    float largest = 0.0f, nothing = 0.0f;  // NaN if an element is not finite; a maximum would hide a NaN
#pragma omp simd reduction(max : largest) reduction(+ : nothing)
    for (const float value : values) {
        largest = std::max(largest, std::fabs(value));
        nothing += 0.0f * value;
    }
    const bool finite = nothing == 0.0f;
    const float inverse = finite && largest > 0x1p-119f ? 127.0f / largest : 0.0f;
#pragma omp simd
    for (int i = 0; i < group_columns; i++)
        q[i] = finite ? static_cast<WordElement>(std::rint(values[i] * inverse)) : WordElement{0};
    return finite ? largest / 127.0f : NAN;
}

// to = `count` columns of `rows` rows of inp. A tile has zeros below its last row.
template <class T>
void quantize_tile(TileGroup& to, const T* inp, size_t C, size_t rows, size_t count) {
    for (size_t row = 0; row < tile_rows; row++) {
        WordElement q[group_columns] = {};
        to.scales[row] = row < rows ? quantize(q, inp + row * C, count) : 0.0f;
        int32_t sum = 0;
        for (const WordElement element : q) sum += element;
        to.compensation[row] = -simt::weights_offset * sum;
        for (int k = 0; k < group_words; k++)
            std::memcpy(&to.x[k][row], q + k * word_elements, sizeof(int32_t));
    }
}

// A vector of a row's weights: the first `left`, and zeros behind them.
inline Lanes load_weights(const int8_t* from, size_t left) {
    constexpr size_t whole = lanes * word_elements;
    if (left >= whole) return reinterpret_cast<Lanes>(simt::load_weights(from));
    int8_t padded[whole] = {};
    std::copy(from, from + left, padded);
    return reinterpret_cast<Lanes>(simt::load_weights(padded));
}

// A strip: to[word * Strip + row] of `width` rows of weights, which have C columns, `left` of them from here
// on. Rows beyond the matrix are zero; words beyond the last column stay as they were, because what they are
// multiplied by is zero.
template <int Strip>
void pack_weights(int32_t* to, const int8_t* weights, size_t C, size_t width, size_t left) {
    for (size_t i = 0; i < Strip; i += lanes) {
        for (size_t column = 0; column < std::min(left, depth); column += lanes * word_elements) {
            Lanes rows[lanes];
            UNROLL_REGISTERS
            for (size_t j = 0; j < lanes; j++) {
                rows[j] =
                    i + j < width ? load_weights(weights + (i + j) * C + column, left - column) : Lanes{};
            }
            packed::transpose(rows);
            UNROLL_REGISTERS
            for (size_t j = 0; j < lanes; j++)
                *reinterpret_cast<Lanes*>(to + (column / word_elements + j) * Strip + i) = rows[j];
        }
    }
}

// sums (tile_rows, V vectors) = (if first) or += the products of `count` groups with a strip
template <int V>
void tile_product(float* sums, const TileGroup* groups, size_t count, const int32_t* strip, bool first) {
    for (const TileGroup* group = groups; group < groups + count; group++, first = false) {
        Words c[tile_rows][V];
        UNROLL_REGISTERS
        for (int row = 0; row < tile_rows; row++) {
            UNROLL_REGISTERS
            for (int v = 0; v < V; v++) c[row][v] = Words{} + group->compensation[row];
        }
#pragma GCC unroll 4
        for (int k = 0; k < group_words; k++, strip += V * lanes) {
            Words weights[V];
            UNROLL_REGISTERS
            for (int v = 0; v < V; v++) weights[v] = *reinterpret_cast<const Words*>(strip + v * lanes);
            UNROLL_REGISTERS
            for (int row = 0; row < tile_rows; row++) {
                const Words x = Words{} + group->x[k][row];
                UNROLL_REGISTERS
                for (int v = 0; v < V; v++) c[row][v] = simt::add_products(c[row][v], weights[v], x);
            }
        }
        UNROLL_REGISTERS
        for (int row = 0; row < tile_rows; row++) {
            UNROLL_REGISTERS
            for (int v = 0; v < V; v++) {
                float* const sum = sums + row * tile_columns + v * lanes;
                packed::put(
                    sum, simt::fused(Lanes{} + group->scales[row], __builtin_convertvector(c[row][v], Lanes),
                                     first ? Lanes{} : packed::widen(sum)));
            }
        }
    }
}

// The operands of a whole product; inp as groups of its tiles of rows, those of a tile one after the other.
template <class T>
struct Operands {
    T* out;
    const TileGroup* inp;
    const int8_t* weights;
    const float* scales;
    const T* bias;
    size_t C, OC;
};

// A block of out (rows, columns) that begins at (m, n).
template <class T>
void block_product(Scratch& own, const Operands<T>& p, size_t m, size_t n, size_t rows, size_t columns) {
    for (size_t k = 0; k < p.C; k += depth) {
        const bool last = k + depth >= p.C;
        const size_t groups_per_tile = groups_of(p.C), count = groups_of(std::min(depth, p.C - k));
        float* sums = own.sums;
        for (size_t column = n; column < n + columns; column += tile_columns) {
            const size_t width = std::min<size_t>(n + columns - column, tile_columns);
            packed::for_vectors(width, [&](auto V) {
                pack_weights<V * lanes>(own.weights, p.weights + column * p.C + k, p.C, width, p.C - k);
                for (size_t row = m; row < m + rows; row += tile_rows) {
                    const TileGroup* const groups =
                        p.inp + row / tile_rows * groups_per_tile + k / group_columns;
                    tile_product<V>(sums, groups, count, own.weights, k == 0);
                    for (size_t r = row; last && r < std::min(row + tile_rows, m + rows); r++) {
                        const float* const sum = sums + (r - row) * tile_columns;
                        for (size_t i = 0; i < width; i += lanes) {
                            const size_t at = column + i, left = width - i;
                            const Lanes bias = p.bias ? packed::widen(p.bias + at, left) : Lanes{};
                            packed::put(
                                p.out + r * p.OC + at,
                                simt::fused(packed::widen(p.scales + at, left), packed::widen(sum + i), bias),
                                left);
                        }
                    }
                    // with a single range of C the sums of one tile are used again
                    if (p.C > depth) sums += tile_rows * tile_columns;
                }
            });
        }
    }
}

}  // namespace int8_product_detail

// For a product of at most N rows.
inline size_t int8_product_scratch_bytes(size_t N, size_t C) {
    using namespace int8_product_detail;
    return static_cast<size_t>(omp_get_max_threads()) * sizeof(Scratch) +
           simt::ceil_div<size_t>(N, tile_rows) * groups_of(C) * sizeof(TileGroup);
}

// N, C and OC are positive; bias (OC) may be nullptr. scratch: aligned to 64 bytes. 2*N*C*OC operations on
// int8; bound by arithmetic, except where N is small.
template <class T>
void int8_product(T* out, const T* inp, const int8_t* weights, const float* scales, const T* bias, size_t N,
                  size_t C, size_t OC, void* scratch) {
    using namespace int8_product_detail;
    auto* const thread_scratch = static_cast<Scratch*>(scratch);
    auto* const groups = reinterpret_cast<TileGroup*>(thread_scratch + omp_get_max_threads());
    const Operands<T> operands{out, groups, weights, scales, bias, C, OC};
    const packed::BlockSize size = packed::block_size(N, OC, 1, {block_rows, block_columns});
    const size_t across = simt::ceil_div(OC, size.columns), blocks = simt::ceil_div(N, size.rows) * across;
#pragma omp parallel
    {
#pragma omp for
        for (size_t row = 0; row < N; row += tile_rows) {
            for (size_t g = 0; g < groups_of(C); g++) {
                const size_t column = g * group_columns;
                quantize_tile(groups[row / tile_rows * groups_of(C) + g], inp + row * C + column, C, N - row,
                              C - column);
            }
        }
#pragma omp for schedule(dynamic)
        for (size_t block = 0; block < blocks; block++) {
            const size_t m = block / across * size.rows, n = block % across * size.columns;
            block_product(thread_scratch[omp_get_thread_num()], operands, m, n, std::min(size.rows, N - m),
                          std::min(size.columns, OC - n));
        }
    }
}
