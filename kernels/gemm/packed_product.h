// packed_product.h: C (M, N) = op(A) (M, K) op(B) (K, N) in fp32 on the CPU, from fp32 or bfloat16 matrices;
//   also a batch of products, and half of a symmetric one
//   Blocks of A and strips of B are copied into the order in which the innermost loop reads them (Goto and
//   van de Geijn 2008, "Anatomy of high-performance matrix multiplication"). The copy also widens bfloat16
//   and transposes, so both cost almost nothing. Nor does an awkward leading dimension, a multiple of 4096
//   bytes, where every row falls into the same cache set. Rows of A in fp32 that need none of this are read
//   where they lie.
//   Blocks of C are independent tasks, so there is no barrier. The terms of an element are added in an
//   order that depends on K alone: its bits depend neither on the number of threads nor on M, N or the batch.
//   Nothing is allocated: the caller provides packed_product_scratch_bytes().
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/target.h"

namespace packed_product_detail {

// A tile of C, tile_rows x tile_vectors, stays in registers while the innermost loop runs along K.
constexpr int lanes = simt::cpu_vector_bytes / sizeof(float);
// 24 of 32 registers, or 12 of 16
constexpr int tile_rows = lanes == 16 ? 8 : 6, tile_vectors = lanes == 16 ? 3 : 2;
constexpr int tile_columns = tile_vectors * lanes;
// Length of a range of K: the strip of B that a column of tiles shares (48 KiB, or 16 KiB without AVX-512)
// and a tile's rows of A (8 KiB, or 6 KiB) are read from the nearest caches.
constexpr size_t depth = 256;
// The largest block of C for one task: its A (256 KiB, or 288 KiB) stays in a second-level cache of 512 KiB
// or more, while its sums pass by.
constexpr size_t block_rows = lanes == 16 ? 256 : 288, block_columns = lanes == 16 ? 384 : 512;
static_assert(block_rows % tile_rows == 0 && block_columns % tile_columns == 0 && depth % lanes == 0);

// g++'s vector types, for any address
typedef float Lanes __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));
typedef uint16_t HalfBits __attribute__((vector_size(lanes * sizeof(uint16_t)), aligned(2), may_alias));

struct Scratch {  // of one thread
    alignas(64) float a[block_rows * depth];
    alignas(64) float b[tile_columns * depth];           // a strip
    alignas(64) float sums[block_rows * block_columns];  // over the ranges of K so far
};

inline Lanes widen(const float* from) { return *reinterpret_cast<const Lanes*>(from); }
inline Lanes widen(const bfloat16* from) {
    const Bits bits = __builtin_convertvector(*reinterpret_cast<const HalfBits*>(from), Bits) << 16;
    return reinterpret_cast<Lanes>(bits);
}
// The first `count` elements, then zeros.
template <class T>
Lanes widen(const T* from, size_t count) {
    if (count >= lanes) return widen(from);
    T padded[lanes];
    std::memset(padded, 0, sizeof(padded));
    std::copy(from, from + count, padded);
    return widen(padded);
}
inline void put(float* to, Lanes values) { *reinterpret_cast<Lanes*>(to) = values; }

// One exchange of a transposition: row i keeps its even groups of `distance` columns, and the even
// groups of row i + distance become its odd ones.
template <int distance>
void exchange(Lanes& low, Lanes& high) {
    typedef int Indices __attribute__((vector_size(lanes * sizeof(int))));
    Indices of_low, of_high;
    for (int i = 0; i < lanes; i++) {
        of_low[i] = i & distance ? lanes + i - distance : i;
        of_high[i] = i & distance ? lanes + i : i + distance;
    }
    const Lanes old_low = low;
    low = __builtin_shuffle(old_low, high, of_low);
    high = __builtin_shuffle(old_low, high, of_high);
}
template <int distance = 1>
void transpose(Lanes (&rows)[lanes]) {
    UNROLL_REGISTERS
    for (int i = 0; i < lanes; i++) {
        if ((i & distance) == 0) exchange<distance>(rows[i], rows[i + distance]);
    }
    if constexpr (2 * distance < lanes) transpose<2 * distance>(rows);
}

// Packs `width` columns of a (k, columns) matrix as a strip: to[k * Strip + column]. Columns beyond the
// matrix are zero.
template <int Strip, class T>
void pack_rows(float* to, const T* from, size_t stride, size_t width, size_t k_count) {
    if (width >= Strip) {
        for (size_t k = 0; k < k_count; k++) {
            for (int i = 0; i < Strip; i++) to[k * Strip + i] = static_cast<float>(from[k * stride + i]);
        }
    } else {
        for (size_t k = 0; k < k_count; k++) {
            for (size_t i = 0; i < Strip; i++)
                to[k * Strip + i] = i < width ? static_cast<float>(from[k * stride + i]) : 0.0f;
        }
    }
}
// The same from a (columns, k) matrix.
template <int Strip, class T>
void pack_transposed(float* to, const T* from, size_t stride, size_t width, size_t k_count) {
    for (size_t i = 0; i < Strip; i += lanes) {
        for (size_t k = 0; k < k_count; k += lanes) {
            Lanes rows[lanes];
            if (i + lanes <= width && k + lanes <= k_count) {
                UNROLL_REGISTERS
                for (int j = 0; j < lanes; j++) rows[j] = widen(from + (i + j) * stride + k);
            } else {
                for (size_t j = 0; j < lanes; j++)
                    rows[j] = i + j < width ? widen(from + (i + j) * stride + k, k_count - k) : Lanes{};
            }
            transpose(rows);
            // Rows of zeros behind the last k do no harm: the strip has room for `depth` rows.
            UNROLL_REGISTERS
            for (int j = 0; j < lanes; j++) put(to + (k + j) * Strip + i, rows[j]);
        }
    }
}
// The rows of a tile, one after the other: to[row * depth + k].
template <class T>
void pack_tile(float* to, const T* from, size_t stride, size_t rows, size_t k_count) {
    for (size_t row = 0; row < tile_rows; row++) {
        for (size_t k = 0; k < k_count; k += lanes)
            put(to + row * depth + k, row < rows ? widen(from + row * stride + k, k_count - k) : Lanes{});
    }
}

// sums (tile_rows, V vectors) = (if first) or += A strip x B strip. A is laid out by pack_rows (KMajor),
// or its rows are `stride` apart.
template <int V, bool KMajor>
void tile_product(float* sums, const float* a, size_t stride, const float* b, size_t k_count, bool first) {
    Lanes c[tile_rows][V];
    UNROLL_REGISTERS
    for (int row = 0; row < tile_rows; row++) {
        UNROLL_REGISTERS
        for (int v = 0; v < V; v++)
            c[row][v] = first ? Lanes{} : widen(sums + row * tile_columns + v * lanes);
    }
    // One of the loop's own instructions for four steps: a sixth faster where another program's thread shares
    // the core and takes half of the instructions that it can begin.
#pragma GCC unroll 4
    for (size_t k = 0; k < k_count; k++) {
        Lanes column[V];
        UNROLL_REGISTERS
        for (int v = 0; v < V; v++) column[v] = widen(b + (k * V + v) * lanes);
        UNROLL_REGISTERS
        for (int row = 0; row < tile_rows; row++) {
            const float x = KMajor ? a[k * tile_rows + row] : a[row * stride + k];
            UNROLL_REGISTERS
            for (int v = 0; v < V; v++) c[row][v] += x * column[v];
        }
    }
    UNROLL_REGISTERS
    for (int row = 0; row < tile_rows; row++) {
        UNROLL_REGISTERS
        for (int v = 0; v < V; v++) put(sums + row * tile_columns + v * lanes, c[row][v]);
    }
}

// Calls body(std::integral_constant<int, V>), where V vectors hold `columns` columns; V is at most
// tile_vectors.
template <class Body>
void for_vectors(size_t columns, Body body) {
    if (columns > 2 * lanes && tile_vectors > 2) body(std::integral_constant<int, tile_vectors>{});
    else if (columns > lanes) body(std::integral_constant<int, 2>{});
    else body(std::integral_constant<int, 1>{});
}

}  // namespace packed_product_detail

// A row-major matrix in memory; transposed: op(X) = X^T.
template <class T>
struct Operand {
    const T* data;
    size_t stride;
    bool transposed;
    const T* at(size_t row, size_t column) const {
        return transposed ? data + column * stride + row : data + row * stride + column;
    }
    Operand of_batch(size_t i, size_t elements) const { return {data + i * elements, stride, transposed}; }
};

// C = alpha op(A) op(B) + beta add (M, N), for `batch` products whose matrices follow one another in memory.
// With beta = 0 add is not read. symmetric: C and add are. Then only the half of C on and below the diagonal
// is computed, and the other is a copy; the bits are those that the whole product would have.
template <class Result>
struct GeneralProduct {
    float alpha, beta;
    const Result* add;
    size_t batch = 1;
    bool symmetric = false;
};

namespace packed_product_detail {

// A block of C and all that is needed to write it.
template <class T, class Result>
struct Block {
    Result* c;                           // the whole matrix
    size_t stride, m, n, rows, columns;  // the block's place in it
    const T* bias;
    bool accumulate;
    const GeneralProduct<Result>* general;
    const Result* add;

    // A block of a symmetric C writes its elements that are not right of the diagonal, and mirrors them.
    bool is_symmetric() const { return general && general->symmetric; }
    // True if elements of the block from this column on, in rows before the end, all lie right of the
    // diagonal, so that they need not be computed.
    bool is_mirrored(size_t row_end, size_t column) const {
        return is_symmetric() && n + column >= m + row_end;
    }
    // A square below the diagonal, in registers.
    void mirror_square(size_t row, size_t column) const {
        Lanes square[lanes];
        UNROLL_REGISTERS
        for (size_t i = 0; i < lanes; i++) square[i] = widen(c + (row + i) * stride + column);
        transpose(square);
        UNROLL_REGISTERS
        for (size_t i = 0; i < lanes; i++) put(c + (column + i) * stride + row, square[i]);
    }
    void mirror() const {
        constexpr size_t side = lanes;  // of the squares in which rows become columns
        for (size_t row0 = m; row0 < m + rows; row0 += side) {
            for (size_t column0 = n; column0 < n + columns; column0 += side) {
                const bool is_whole =
                    row0 + side <= m + rows && column0 + side <= std::min(n + columns, row0);
                if constexpr (std::is_same_v<Result, float>) {
                    if (is_whole) {
                        mirror_square(row0, column0);
                        continue;
                    }
                }
                for (size_t row = row0; row < std::min(m + rows, row0 + side); row++) {
                    const size_t end = std::min({row, n + columns, column0 + side});
                    for (size_t column = column0; column < end; column++)
                        c[column * stride + row] = c[row * stride + column];
                }
            }
        }
    }

    // width: a constant for a whole tile, because loops of constant length are faster.
    template <class Width>
    void write_row(size_t row, size_t column, const float* sums, Width width) const {
        const size_t at = row * stride + column;
        Result* const to = c + at;
        const float alpha = general ? general->alpha : 1, beta = general ? general->beta : 0;
        if (beta != 0) {
            const Result* const from = add + at;
            // test_gemm checks that the compiler rounds alike for each kind of width.
#pragma omp simd
            for (size_t i = 0; i < width; i++)
                to[i] = Result(alpha * sums[i] + beta * static_cast<float>(from[i]));
        } else if (general) {
#pragma omp simd
            for (size_t i = 0; i < width; i++) to[i] = Result(alpha * sums[i]);
        } else if (accumulate) {
#pragma omp simd
            for (size_t i = 0; i < width; i++) to[i] = Result(static_cast<float>(to[i]) + sums[i]);
        } else if (bias) {
#pragma omp simd
            for (size_t i = 0; i < width; i++) to[i] = Result(sums[i] + static_cast<float>(bias[column + i]));
        } else {
#pragma omp simd
            for (size_t i = 0; i < width; i++) to[i] = Result(sums[i]);
        }
    }

    void write_tile(size_t row0, size_t column0, const float* sums) const {
        const size_t column = n + column0, width = std::min<size_t>(tile_columns, columns - column0);
        for (size_t row = m + row0; row < m + std::min(rows, row0 + tile_rows); row++, sums += tile_columns) {
            if (is_symmetric())
                write_row(row, column, sums, row < column ? 0 : std::min(width, row + 1 - column));
            else if (width < tile_columns) write_row(row, column, sums, width);
            else write_row(row, column, sums, std::integral_constant<size_t, tile_columns>{});
        }
    }
};

// True if a tile of A is read in place: it is fp32 and whole, its rows lie along K, and they are not a
// multiple of 4096 bytes apart.
template <class T>
bool is_read_in_place(const Operand<T>& a, size_t rows) {
    return std::is_same_v<T, float> && !a.transposed && rows >= tile_rows && a.stride % 1024 != 0;
}
template <class T>
void pack_a(float* to, const Operand<T>& a, size_t m, size_t rows, size_t k, size_t k_count) {
    for (size_t row = 0; row < rows; row += tile_rows, to += tile_rows * depth) {
        if (is_read_in_place(a, rows - row)) continue;
        if (a.transposed) pack_rows<tile_rows>(to, a.at(m + row, k), a.stride, rows - row, k_count);
        else pack_tile(to, a.at(m + row, k), a.stride, rows - row, k_count);
    }
}
template <int V, class T>
void pack_strip(float* to, const Operand<T>& b, size_t n, size_t columns, size_t k, size_t k_count) {
    if (b.transposed) pack_transposed<V * lanes>(to, b.at(k, n), b.stride, columns, k_count);
    else pack_rows<V * lanes>(to, b.at(k, n), b.stride, columns, k_count);
}

template <class T, class Result>
void block_product(Scratch& own, const Block<T, Result>& block, const Operand<T>& a, const Operand<T>& b,
                   size_t K) {
    for (size_t k = 0; k < K; k += depth) {
        const size_t k_count = std::min(depth, K - k);
        const bool last = k + k_count == K;
        pack_a(own.a, a, block.m, block.rows, k, k_count);
        float* sums = own.sums;
        for (size_t column = 0; column < block.columns; column += tile_columns) {
            if (block.is_mirrored(block.rows, column)) break;
            for_vectors(block.columns - column, [&](auto V) {
                pack_strip<V()>(own.b, b, block.n + column, block.columns - column, k, k_count);
                for (size_t row = 0; row < block.rows; row += tile_rows) {
                    if (block.is_mirrored(row + tile_rows, column)) continue;
                    const float* a_tile = own.a + row * depth;
                    size_t stride = depth;
                    if constexpr (std::is_same_v<T, float>) {
                        if (is_read_in_place(a, block.rows - row))
                            a_tile = a.at(block.m + row, k), stride = a.stride;
                    }
                    if (a.transposed) tile_product<V(), true>(sums, a_tile, stride, own.b, k_count, k == 0);
                    else tile_product<V(), false>(sums, a_tile, stride, own.b, k_count, k == 0);
                    if (last) block.write_tile(row, column, sums);
                    // with a single range of K one tile serves all, and stays in the first-level cache
                    if (K > depth) sums += tile_rows * tile_columns;
                }
            });
        }
    }
    if (block.is_symmetric()) block.mirror();
}

struct BlockSize {
    size_t rows, columns;
};
// The blocks of C with which the busiest thread has the least to do, if all are computed.
inline BlockSize block_size(size_t M, size_t N, size_t batch) {
    constexpr size_t copy = 12;  // multiply-adds in the time of copying an element, on a Zen 3
    const auto threads = static_cast<size_t>(omp_get_max_threads());
    const auto part = [](size_t whole, size_t parts, size_t unit) {
        return simt::ceil_div(simt::ceil_div(whole, parts), unit) * unit;
    };
    const size_t least_down = simt::ceil_div(M, block_rows), least_across = simt::ceil_div(N, block_columns);
    BlockSize best{};
    size_t least = SIZE_MAX;
    const size_t end_down = std::min(least_down + 16, simt::ceil_div<size_t>(M, tile_rows) + 1);
    for (size_t down = least_down; down < end_down; down++) {
        for (size_t of_each = 1; of_each <= 3; of_each++) {  // blocks of a thread
            const size_t across = std::max(least_across, simt::ceil_div(of_each * threads, batch * down));
            const BlockSize size{part(M, down, tile_rows), part(N, across, tile_columns)};
            const size_t blocks = batch * simt::ceil_div(M, size.rows) * simt::ceil_div(N, size.columns);
            const size_t time = simt::ceil_div(blocks, threads) *
                                (size.rows * size.columns + copy * (size.rows + size.columns));
            if (time < least) least = time, best = size;
        }
    }
    return best;
}

}  // namespace packed_product_detail

inline size_t packed_product_scratch_bytes() {
    return static_cast<size_t>(omp_get_max_threads()) * sizeof(packed_product_detail::Scratch);
}

// c (M, N) = op(a) op(b) + bias (N), or += op(a) op(b) with accumulate, or as `general` says. M, N and K are
// positive. bias and general may be nullptr. scratch: packed_product_scratch_bytes, aligned to 64 bytes.
// 2*M*N*K operations, or about half of them if c is symmetric; bound by arithmetic.
template <class T, class Result>
void packed_product(Result* c, Operand<T> a, Operand<T> b, const T* bias, size_t M, size_t N, size_t K,
                    bool accumulate, void* scratch, const GeneralProduct<Result>* general = nullptr) {
    using namespace packed_product_detail;
    const size_t batch = general ? general->batch : 1;
    const BlockSize size = block_size(M, N, batch);
    const size_t down = simt::ceil_div(M, size.rows), across = simt::ceil_div(N, size.columns);
#pragma omp parallel for schedule(dynamic)
    for (size_t task = 0; task < batch * down * across; task++) {
        const size_t i = task / (down * across), m = task / across % down * size.rows,
                     n = task % across * size.columns;
        const Block<T, Result> block{c + i * M * N,
                                     N,
                                     m,
                                     n,
                                     std::min(size.rows, M - m),
                                     std::min(size.columns, N - n),
                                     bias,
                                     accumulate,
                                     general,
                                     general && general->beta != 0 ? general->add + i * M * N : nullptr};
        if (block.is_mirrored(block.rows, 0)) continue;
        block_product(static_cast<Scratch*>(scratch)[omp_get_thread_num()], block, a.of_batch(i, M * K),
                      b.of_batch(i, K * N), K);
    }
}
