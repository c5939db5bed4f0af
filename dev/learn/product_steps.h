// product_steps.h: C (M, N) = A (M, K) B (K, N), from three loops to packed blocks on all cores
//   docs/learn/9-matrix-product.md explains each step, and matrix_product.cu measures it. Every step
//   overwrites C. Matrices are row-major in fp32; the packed steps take transposes and bfloat16 too.
#pragma once
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/simt/bf16_pairs.h"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/target.h"

namespace product_steps {

struct Product {
    float* c;
    const float *a, *b;
    size_t M, N, K;
};

// Three loops, one element of C after the other. The innermost one goes down a column of B.
inline void elements(const Product& p) {
    for (size_t i = 0; i < p.M; i++) {
        for (size_t j = 0; j < p.N; j++) {
            float sum = 0;
            for (size_t k = 0; k < p.K; k++) sum += p.a[i * p.K + k] * p.b[k * p.N + j];
            p.c[i * p.N + j] = sum;
        }
    }
}

// The innermost loop in the good order. It goes along rows, so the compiler makes vectors of it.
inline void add_row(float* __restrict__ c, float x, const float* __restrict__ b, size_t count) {
    for (size_t j = 0; j < count; j++) c[j] += x * b[j];
}

// The same three loops in the good order.
inline void rows(const Product& p) {
    std::fill(p.c, p.c + p.M * p.N, 0.0f);
    for (size_t i = 0; i < p.M; i++) {
        for (size_t k = 0; k < p.K; k++) add_row(p.c + i * p.N, p.a[i * p.K + k], p.b + k * p.N, p.N);
    }
}

// A block of B, block_terms x block_columns, stays in the nearest caches (64 KiB) for all rows of A.
constexpr size_t block_terms = 64, block_columns = 256;
inline void blocks(const Product& p) {
    std::fill(p.c, p.c + p.M * p.N, 0.0f);
    for (size_t j = 0; j < p.N; j += block_columns) {
        const size_t columns = std::min(block_columns, p.N - j);
        for (size_t k0 = 0; k0 < p.K; k0 += block_terms) {
            const size_t k1 = std::min(p.K, k0 + block_terms);
            for (size_t i = 0; i < p.M; i++) {
                for (size_t k = k0; k < k1; k++)
                    add_row(p.c + i * p.N + j, p.a[i * p.K + k], p.b + k * p.N + j, columns);
            }
        }
    }
}

// g++'s vectors, for any address: 8 lanes with AVX2, 16 with AVX-512
using simt::Lanes;
using Words = simt::LaneBits;
constexpr int lanes = simt::cpu_lanes;
inline Lanes load(const float* from) { return *reinterpret_cast<const Lanes*>(from); }
inline Words load(const uint32_t* from) { return *reinterpret_cast<const Words*>(from); }
inline void multiply_add(Lanes& sum, float x, Lanes y) { sum += x * y; }
inline void multiply_add(Lanes& sum, uint32_t x, Words y);  // of pairs of bfloat16, below

// A tile of C in registers: 12 of AVX2's 16, or 24 of AVX-512's 32.
constexpr int tile_rows = lanes == 8 ? 6 : 8, tile_vectors = lanes == 8 ? 2 : 3;
constexpr int tile_columns = tile_vectors * lanes;
struct Tile {
    Lanes sums[tile_rows][tile_vectors];
};

// The sums of `terms` products. Element (row, k) of A is a[row * a_row + k * a_term], and b_term leads
// from a row of B to the next.
template <class Word>
__forceinline__ Tile tile_product(const Word* a, size_t a_row, size_t a_term, const Word* b, size_t b_term,
                                  size_t terms) {
    Tile tile = {};
    for (size_t k = 0; k < terms; k++, a += a_term, b += b_term) {
        UNROLL_REGISTERS
        for (int row = 0; row < tile_rows; row++) {
            UNROLL_REGISTERS
            for (int v = 0; v < tile_vectors; v++)
                multiply_add(tile.sums[row][v], a[row * a_row], load(b + v * lanes));
        }
    }
    return tile;
}

// C = (if first) or += the tile
__forceinline__ void put(float* c, size_t stride, const Tile& tile, bool first) {
    UNROLL_REGISTERS
    for (int row = 0; row < tile_rows; row++) {
        UNROLL_REGISTERS
        for (int v = 0; v < tile_vectors; v++) {
            Lanes* const to = reinterpret_cast<Lanes*>(c + row * stride + v * lanes);
            *to = first ? tile.sums[row][v] : *to + tile.sums[row][v];
        }
    }
}

// Each element of A and B that is loaded is used for a whole row or column of a tile.
constexpr size_t depth = 256;  // terms of a tile
inline void tiles(const Product& p) {
    const size_t whole_rows = p.M - p.M % tile_rows, whole_columns = p.N - p.N % tile_columns;
    std::fill(p.c, p.c + p.M * p.N, 0.0f);
    for (size_t k = 0; k < p.K; k += depth) {
        for (size_t j = 0; j < whole_columns; j += tile_columns) {
            for (size_t i = 0; i < whole_rows; i += tile_rows) {
                const Tile tile =
                    tile_product(p.a + i * p.K + k, p.K, 1, p.b + k * p.N + j, p.N, std::min(depth, p.K - k));
                put(p.c + i * p.N + j, p.N, tile, false);
            }
        }
    }
    for (size_t i = 0; i < p.M; i++) {  // what no whole tile covers
        const size_t j = i < whole_rows ? whole_columns : 0;
        for (size_t k = 0; k < p.K; k++)
            add_row(p.c + i * p.N + j, p.a[i * p.K + k], p.b + k * p.N + j, p.N - j);
    }
}

// A matrix in memory. Its transpose is the same memory with the two steps exchanged.
template <class T>
struct View {
    const T* data;
    size_t down, right;  // from an element to that below, and to that at its right
    View transposed() const { return {data, right, down}; }
    View at(size_t row, size_t column) const { return {data + row * down + column * right, down, right}; }
};

// to[k * Strip + i] = element (i, k) of `from`, for i < width; zeros fill the strip.
template <int Strip>
size_t pack(float* to, View<float> from, size_t width, size_t terms) {
    for (size_t k = 0; k < terms; k++, to += Strip) {
        const float* const column = from.data + k * from.right;
        if (width >= Strip && from.down == 1) {
            __builtin_prefetch(column + Strip);  // which the next strip will copy
            for (size_t i = 0; i < Strip; i++) to[i] = column[i];
        } else {
            for (size_t i = 0; i < Strip; i++) to[i] = i < width ? column[i * from.down] : 0.0f;
        }
    }
    return terms;
}

template <class Word>
struct Scratch {  // of one thread: 288 or 384 rows of A, in the second-level cache, and a strip of B
    static constexpr size_t rows = 48 * tile_rows;
    alignas(64) Word a[rows * depth];
    alignas(64) Word b[depth * tile_columns];
};

// Writes the part of a tile that lies in C.
inline void put_part(float* c, size_t stride, const Tile& tile, size_t rows, size_t columns, bool first) {
    for (size_t row = 0; row < rows; row++) {
        for (size_t j = 0; j < columns; j++) {
            const float sum = tile.sums[row][j / lanes][j % lanes];
            c[row * stride + j] = first ? sum : c[row * stride + j] + sum;
        }
    }
}

// Columns j0 to j1 of C = A B.
template <class T, class Word>
void packed_columns(float* c, View<T> a, View<T> b, size_t M, size_t N, size_t K, size_t j0, size_t j1,
                    Scratch<Word>& own) {
    for (size_t i0 = 0; i0 < M; i0 += own.rows) {
        const size_t i1 = std::min(M, i0 + own.rows);
        for (size_t k = 0; k < K; k += depth) {
            const size_t terms = std::min(depth, K - k);
            for (size_t i = i0; i < i1; i += tile_rows)
                pack<tile_rows>(own.a + (i - i0) * depth, a.at(i, k), i1 - i, terms);
            for (size_t j = j0; j < j1; j += tile_columns) {
                const size_t packed = pack<tile_columns>(own.b, b.transposed().at(j, k), j1 - j, terms);
                for (size_t i = i0; i < i1; i += tile_rows) {
                    const Tile tile = tile_product<Word>(own.a + (i - i0) * depth, 1, tile_rows, own.b,
                                                         tile_columns, packed);
                    if (i + tile_rows <= i1 && j + tile_columns <= j1) put(c + i * N + j, N, tile, k == 0);
                    else
                        put_part(c + i * N + j, N, tile, std::min<size_t>(tile_rows, i1 - i),
                                 std::min<size_t>(tile_columns, j1 - j), k == 0);
                }
            }
        }
    }
}

// Both operands are packed. The threads share the columns of C. scratch: one for each thread
template <class T, class Word>
void packed(float* c, View<T> a, View<T> b, size_t M, size_t N, size_t K, Scratch<Word>* scratch) {
    const auto threads = static_cast<size_t>(omp_get_max_threads());
    const size_t columns =
        simt::ceil_div(simt::ceil_div(N, 2 * threads), size_t{tile_columns}) * tile_columns;
#pragma omp parallel for schedule(dynamic)
    for (size_t j = 0; j < N; j += columns)
        packed_columns(c, a, b, M, N, K, j, std::min(N, j + columns), scratch[omp_get_thread_num()]);
}

// The same from bfloat16. A word holds two terms: the elements k (lower half) and k + 1.
template <int Strip>
size_t pack(uint32_t* to, View<bfloat16> from, size_t width, size_t terms) {
    for (size_t k = 0; k < terms; k += 2, to += Strip) {
        for (size_t i = 0; i < Strip; i++) {
            const bfloat16* const pair = from.data + k * from.right + i * from.down;
            const uint32_t low = i < width ? pair[0].bits : 0;
            const uint32_t high = i < width && k + 1 < terms ? pair[from.right].bits : 0;
            to[i] = low | high << 16;
        }
    }
    return simt::ceil_div(terms, size_t{2});
}

// sum += the products of both halves
inline void multiply_add(Lanes& sum, uint32_t x, Words y) { sum = simt::add_pairs(sum, Words{} + x, y); }

// Multiply-adds from registers to registers, in as many sums as a tile has: 2 * tile elements * count
// operations on this thread. The sums begin differently, or the compiler would compute one of them only.
inline float registers_only(size_t count, float factor, float addend) {
    Tile tile;
    float begin = addend;
    for (auto& row : tile.sums) {
        for (Lanes& sum : row) sum = Lanes{} + begin++;
    }
    const Lanes x = factor + Lanes{}, y = addend + Lanes{};
    for (size_t n = 0; n < count; n++) {
        UNROLL_REGISTERS
        for (int row = 0; row < tile_rows; row++) {
            UNROLL_REGISTERS
            for (int v = 0; v < tile_vectors; v++) tile.sums[row][v] = tile.sums[row][v] * x + y;
        }
    }
    Lanes total = {};
    for (const auto& row : tile.sums) {
        for (const Lanes& sum : row) total += sum;
    }
    return total[0];
}

}  // namespace product_steps
