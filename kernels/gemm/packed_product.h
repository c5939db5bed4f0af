// packed_product.h: C (M, N) = op(A) (M, K) op(B) (K, N) on the CPU, from fp32 or bfloat16 matrices, with
//   sums in fp32; also a batch of products, and half of a symmetric one
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

#include "kernels/simt/bf16_pairs.h"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/cpu_lanes.h"
#include "kernels/simt/target.h"

namespace packed_product_detail {

// A tile of C, tile_rows x tile_vectors, stays in registers while the innermost loop runs along K.
constexpr int lanes = simt::cpu_lanes;
// 24 of 32 registers, or 12 of 16
constexpr int tile_rows = lanes == 16 ? 8 : 6, tile_vectors = lanes == 16 ? 3 : 2;
constexpr int tile_columns = tile_vectors * lanes;
// Length of a range of K: the strip of B that a column of tiles shares (48 KiB, or 16 KiB without AVX-512)
// and a tile's rows of A (8 KiB, or 6 KiB) are read from the nearest caches.
constexpr size_t depth = 256;
// The largest block of C for one task: its A (256 KiB, or 288 KiB) stays in a second-level cache of 512 KiB
// or more, while its sums pass by. If K is at most `depth`, largest_block() allows more.
constexpr size_t block_rows = lanes == 16 ? 256 : 288, block_columns = lanes == 16 ? 384 : 512;
static_assert(block_rows % tile_rows == 0 && block_columns % tile_columns == 0 && depth % lanes == 0);

// Larger matrices do not stay in a second-level cache, so what is needed of them next is prefetched. For
// smaller ones that would cost 1 to 3 % of the time on a Zen 5.
constexpr size_t near_bytes = 1 << 20;
constexpr size_t line_bytes = 64;

using simt::HalfBits;
using simt::LaneBits;
using simt::Lanes;
typedef uint32_t Word __attribute__((may_alias));

// packed_pairs_product() packs two bf16 that follow one another along K as one float. Here they lie in
// neighbouring rows, because K runs down the rows: the second is a row, half of the operand's stride, behind
// the first.
struct SplitPair {
    bfloat16 first;
};
// Pairs that lie in one row are an operand of floats. This type may read them, although they are bf16.
typedef float FloatOrPair __attribute__((may_alias));
// Rows of memory that an element takes.
template <class T>
constexpr size_t rows_of_element = std::is_same_v<T, SplitPair> ? 2 : 1;

struct Scratch {  // of one thread
    alignas(64) float a[block_rows * depth];
    alignas(64) float b[tile_columns * depth];           // a strip
    alignas(64) float sums[block_rows * block_columns];  // over the ranges of K so far
};

inline Lanes widen(const float* from) { return *reinterpret_cast<const Lanes*>(from); }
inline Lanes widen(const bfloat16* from) {
    const LaneBits bits = __builtin_convertvector(*reinterpret_cast<const HalfBits*>(from), LaneBits) << 16;
    return reinterpret_cast<Lanes>(bits);
}
// The first `count` elements, then zeros.
template <class T>
Lanes widen(const T* from, size_t count) {
    if (count >= lanes) return widen(from);
    T padded[lanes];
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, from, count * sizeof(T));
    return widen(padded);
}
inline void put(float* to, Lanes values) { *reinterpret_cast<Lanes*>(to) = values; }
inline void put(bfloat16* to, Lanes values) {
    *reinterpret_cast<HalfBits*>(to) = simt::round_to_bf16(values);
}
// The first `count` lanes.
template <class T>
void put(T* to, Lanes values, size_t count) {
    if (count >= lanes) return put(to, values);
    T all[lanes];
    put(all, values);
    std::copy(all, all + count, to);
}

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

template <class T>
void pack_lane(float* to, const T* from, size_t) {
    *to = static_cast<float>(*from);
}
inline void pack_lane(float* to, const SplitPair* from, size_t stride) {
    *reinterpret_cast<Word*>(to) = from->first.bits | static_cast<uint32_t>(from[stride / 2].first.bits)
                                                          << 16;
}

// Packs `width` columns of a (k, columns) matrix as a strip: to[k * Strip + column]. Columns beyond the
// matrix are zero. With Together > 1 it packs that many strips, which have room for `room` rows, one behind
// the other; the matrix must have all of their columns. A line of memory that narrow strips share is then
// read once.
template <int Strip, int Together = 1, class T>
void pack_rows(float* to, const T* from, size_t stride, size_t width, size_t k_count, size_t room = depth) {
    if (Together > 1 || width >= Strip) {
        for (size_t k = 0; k < k_count; k++) {
            UNROLL_REGISTERS
            for (int strip = 0; strip < Together; strip++) {
                for (int i = 0; i < Strip; i++)
                    pack_lane(to + (strip * room + k) * Strip + i, from + k * stride + strip * Strip + i,
                              stride);
            }
        }
    } else {
        for (size_t k = 0; k < k_count; k++) {
            for (size_t i = 0; i < Strip; i++) {
                if (i < width) pack_lane(to + k * Strip + i, from + k * stride + i, stride);
                else to[k * Strip + i] = 0.0f;
            }
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
// The rows of a tile, one after the other: to[row * room + k].
template <class T>
void pack_tile(float* to, const T* from, size_t stride, size_t rows, size_t k_count, size_t room) {
    for (size_t row = 0; row < tile_rows; row++) {
        for (size_t k = 0; k < k_count; k += lanes)
            put(to + row * room + k, row < rows ? widen(from + row * stride + k, k_count - k) : Lanes{});
    }
}

// sums + x * column, which the compiler fuses wherever it can; Pairs: both hold two bf16 in a lane, whose
// products are added one after the other.
template <bool Pairs>
Lanes multiply_add(Lanes sums, float x, Lanes column) {
    if constexpr (Pairs)
        return simt::add_pairs(sums, LaneBits{} + std::bit_cast<uint32_t>(x),
                               reinterpret_cast<LaneBits>(column));
    else return sums + x * column;
}

// sums (tile_rows, V vectors) = (if first) or += A strip x B strip. A is laid out by pack_rows (KMajor),
// or its rows are `stride` apart; its elements are floats or pairs.
template <int V, bool KMajor, bool Pairs>
void tile_product(float* sums, const FloatOrPair* a, size_t stride, const float* b, size_t k_count,
                  bool first) {
    Lanes c[tile_rows][V];
    UNROLL_REGISTERS
    for (int row = 0; row < tile_rows; row++) {
        UNROLL_REGISTERS
        for (int v = 0; v < V; v++)
            c[row][v] = first ? Lanes{} : widen(sums + row * tile_columns + v * lanes);
    }
    const auto step = [&](size_t k) INLINE {
        Lanes column[V];
        UNROLL_REGISTERS
        for (int v = 0; v < V; v++) column[v] = widen(b + (k * V + v) * lanes);
        UNROLL_REGISTERS
        for (int row = 0; row < tile_rows; row++) {
            const float x = KMajor ? a[k * tile_rows + row] : a[row * stride + k];
            UNROLL_REGISTERS
            for (int v = 0; v < V; v++) c[row][v] = multiply_add<Pairs>(c[row][v], x, column[v]);
            // Otherwise g++ 12 loads all rows' elements first, which needs more registers than there are.
            if constexpr (Pairs) asm volatile("" ::: "memory");
        }
    };
    // One of the loop's own instructions for four steps: a sixth faster where another program's thread shares
    // the core and takes half of the instructions that it can begin.
    size_t k = 0;
    for (; k + 4 <= k_count; k += 4) {
        UNROLL_REGISTERS
        for (size_t i = 0; i < 4; i++) step(k + i);
    }
    for (; k < k_count; k++) step(k);
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
    Operand of_batch(size_t i, size_t elements) const {
        return {data + i * elements * packed_product_detail::rows_of_element<T>, stride, transposed};
    }
};

// C = alpha op(A) op(B) + beta add (M, N), for `batch` products whose matrices follow one another in memory.
// add may be C; with beta = 0 it is not read. symmetric: C and add are. Then only the half of C on and below
// the diagonal is computed, and the other is a copy; the bits are those that the whole product would have.
template <class Result>
struct GeneralProduct {
    float alpha = 1, beta = 0;
    const Result* add = nullptr;
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
    const GeneralProduct<Result>& general;
    const Result* add;  // of this matrix
    bool prefetches_b, prefetches_c;

    // A block of a symmetric C writes its elements that are not right of the diagonal, and mirrors them. True
    // if elements of the block from this column on, in rows before the end, all lie right of the diagonal.
    bool is_mirrored(size_t row_end, size_t column) const {
        return general.symmetric && n + column >= m + row_end;
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
                if (is_whole) {
                    mirror_square(row0, column0);
                    continue;
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
        const float alpha = general.alpha, beta = general.beta;
        const auto each = [&](auto value) INLINE {
            for (size_t i = 0; i < width; i += lanes) put(c + at + i, value(i, widen(sums + i)), width - i);
        };
        if (beta != 0)
            each([&](size_t i, Lanes x) INLINE {
                return simt::fused(Lanes{} + beta, widen(add + at + i, width - i), alpha * x);
            });
        else if (bias)
            each([&](size_t i, Lanes x) INLINE { return x + widen(bias + column + i, width - i); });
        else each([&](size_t, Lanes x) INLINE { return alpha * x; });
    }

    // Prefetches what write_tile() will write, so that it arrives while the tile is multiplied.
    INLINE void prefetch_tile(size_t row0, size_t column0) const {
        const Result* const first = c + (m + row0) * stride + n + column0;
        const size_t width = std::min<size_t>(tile_columns, columns - column0);
        for (size_t row = 0; row < std::min<size_t>(tile_rows, rows - row0); row++) {
            for (size_t i = 0; i < width; i += line_bytes / sizeof(Result))
                __builtin_prefetch(first + row * stride + i, 1, 3);
        }
    }

    void write_tile(size_t row0, size_t column0, const float* sums) const {
        const size_t column = n + column0, width = std::min<size_t>(tile_columns, columns - column0);
        for (size_t row = m + row0; row < m + std::min(rows, row0 + tile_rows); row++, sums += tile_columns) {
            const size_t written = !general.symmetric ? width
                                   : row < column     ? 0
                                                      : std::min(width, row + 1 - column);
            if (written < tile_columns) write_row(row, column, sums, written);
            else write_row(row, column, sums, std::integral_constant<size_t, tile_columns>{});
        }
    }
};

// Floats between two rows of a packed tile, or rows of a packed strip: K or depth, in whole vectors.
inline size_t room_of(size_t K) { return std::min<size_t>(depth, simt::ceil_div<size_t>(K, lanes) * lanes); }

// True if a tile of A is read in place: it is of fp32 or pairs, and whole, its rows lie along K, and they are
// not a multiple of 4096 bytes apart.
template <class T>
bool is_read_in_place(const Operand<T>& a, size_t rows) {
    return std::is_same_v<T, float> && !a.transposed && rows >= tile_rows && a.stride % 1024 != 0;
}
template <class T>
void pack_a(float* to, const Operand<T>& a, size_t m, size_t rows, size_t k, size_t k_count, size_t room) {
    // Four tiles of a transposed A are packed at once: backward_weight at 768x128x512 takes 0.95 of the time.
    constexpr size_t together = 4;
    for (size_t row = 0, tiles; row < rows; row += tiles * tile_rows, to += tiles * tile_rows * room) {
        tiles = a.transposed && rows - row >= together * tile_rows ? together : 1;
        if (is_read_in_place(a, rows - row)) continue;
        const T* const from = a.at(m + row, k);
        if constexpr (!std::is_same_v<T, SplitPair>) {
            if (!a.transposed) {
                pack_tile(to, from, a.stride, rows - row, k_count, room);
                continue;
            }
        }
        if (tiles > 1) pack_rows<tile_rows, together>(to, from, a.stride, rows - row, k_count, room);
        else pack_rows<tile_rows>(to, from, a.stride, rows - row, k_count);
    }
}
template <int V, class T>
void pack_strip(float* to, const Operand<T>& b, size_t n, size_t columns, size_t k, size_t k_count) {
    if constexpr (!std::is_same_v<T, SplitPair>) {
        if (b.transposed) return pack_transposed<V * lanes>(to, b.at(k, n), b.stride, columns, k_count);
    }
    pack_rows<V * lanes>(to, b.at(k, n), b.stride, columns, k_count);
}

// Prefetches part `part` of `parts` of the strip that is packed next: weights come from memory, and the core
// multiplies meanwhile. Inlined, because g++ 12 removes calls of a function that only prefetches: it takes it
// for one without effect.
template <class T>
INLINE inline void prefetch_strip(const Operand<T>& b, size_t n, size_t columns, size_t k, size_t k_count,
                                  size_t part, size_t parts) {
    constexpr size_t rows_each = rows_of_element<T>;
    const size_t rows = b.transposed ? columns : k_count * rows_each,
                 width = b.transposed ? k_count : columns;
    const T* const first = b.at(k, n);
    for (size_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
        for (size_t i = 0; i < width; i += line_bytes / sizeof(T))
            __builtin_prefetch(first + row * (b.stride / rows_each) + i, 0, 2);
    }
}

template <bool Pairs, class T, class Result, class A, class B>
void block_product(Scratch& own, const Block<T, Result>& block, const Operand<A>& a, const Operand<B>& b,
                   size_t K) {
    const size_t tiles = simt::ceil_div<size_t>(block.rows, tile_rows), room = room_of(K);
    for (size_t k = 0; k < K; k += depth) {
        const size_t k_count = std::min(depth, K - k);
        const bool last = k + k_count == K;
        pack_a(own.a, a, block.m, block.rows, k, k_count, room);
        float* sums = own.sums;
        for (size_t column = 0; column < block.columns; column += tile_columns) {
            if (block.is_mirrored(block.rows, column)) break;
            size_t next_k = k, next_column = column + tile_columns;
            if (next_column >= block.columns || block.is_mirrored(block.rows, next_column))
                next_k += depth, next_column = 0;
            for_vectors(block.columns - column, [&](auto V) {
                pack_strip<V()>(own.b, b, block.n + column, block.columns - column, k, k_count);
                for (size_t row = 0; row < block.rows; row += tile_rows) {
                    if (block.is_mirrored(row + tile_rows, column)) continue;
                    if (block.prefetches_b && next_k < K)
                        prefetch_strip(b, block.n + next_column,
                                       std::min<size_t>(tile_columns, block.columns - next_column), next_k,
                                       std::min(depth, K - next_k), row / tile_rows, tiles);
                    if (last && block.prefetches_c) block.prefetch_tile(row, column);
                    const FloatOrPair* a_tile = own.a + row * room;
                    size_t stride = room;
                    if constexpr (std::is_same_v<A, float>) {
                        if (is_read_in_place(a, block.rows - row))
                            a_tile = a.at(block.m + row, k), stride = a.stride;
                    }
                    if (a.transposed)
                        tile_product<V(), true, Pairs>(sums, a_tile, stride, own.b, k_count, k == 0);
                    else tile_product<V(), false, Pairs>(sums, a_tile, stride, own.b, k_count, k == 0);
                    if (last) block.write_tile(row, column, sums);
                    // with a single range of K one tile serves all, and stays in the first-level cache
                    if (K > depth) sums += tile_rows * tile_columns;
                }
            });
        }
    }
    if (block.general.symmetric) block.mirror();
}

struct BlockSize {
    size_t rows, columns;
};
// The largest block of C for a task. A short sum leaves room for more rows of A, and for any number of
// columns, since its tiles are written at once. Of a symmetric C the whole block may be left out, so that
// small ones are shared better.
inline BlockSize largest_block(size_t N, size_t K, bool symmetric) {
    if (symmetric) return {block_rows, block_columns};
    return {block_rows * depth / room_of(K) / tile_rows * tile_rows,
            K > depth ? block_columns : simt::ceil_div<size_t>(N, tile_columns) * tile_columns};
}
// The blocks of C, at most as large as `most`, with which the busiest thread has the least to do, if all are
// computed.
inline BlockSize block_size(size_t M, size_t N, size_t batch, BlockSize most) {
    constexpr size_t copy = 12;  // multiply-adds in the time of copying an element, on a Zen 3
    const auto threads = static_cast<size_t>(omp_get_max_threads());
    const auto part = [](size_t whole, size_t parts, size_t unit) {
        return simt::ceil_div(simt::ceil_div(whole, parts), unit) * unit;
    };
    const size_t least_down = simt::ceil_div(M, most.rows), least_across = simt::ceil_div(N, most.columns);
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

namespace packed_product_detail {

// Pairs: an element of A and of B is two bf16.
template <bool Pairs, class T, class Result, class A, class B>
void multiply(Result* c, Operand<A> a, Operand<B> b, const T* bias, size_t M, size_t N, size_t K,
              void* scratch, const GeneralProduct<Result>& general) {
    const BlockSize size = block_size(M, N, general.batch, largest_block(N, K, general.symmetric));
    const size_t down = simt::ceil_div(M, size.rows), across = simt::ceil_div(N, size.columns);
#pragma omp parallel for schedule(dynamic)
    for (size_t task = 0; task < general.batch * down * across; task++) {
        const size_t i = task / (down * across), m = task / across % down * size.rows,
                     n = task % across * size.columns;
        const Block<T, Result> block{c + i * M * N,
                                     N,
                                     m,
                                     n,
                                     std::min(size.rows, M - m),
                                     std::min(size.columns, N - n),
                                     bias,
                                     general,
                                     general.beta != 0 ? general.add + i * M * N : nullptr,
                                     K * N * sizeof(B) * rows_of_element<B> > near_bytes,
                                     M * N * sizeof(Result) > near_bytes};
        if (block.is_mirrored(block.rows, 0)) continue;
        block_product<Pairs>(static_cast<Scratch*>(scratch)[omp_get_thread_num()], block,
                             a.of_batch(i, M * K), b.of_batch(i, K * N), K);
    }
}

}  // namespace packed_product_detail

// c (M, N) = op(a) op(b) + bias (N), or as `general` says if bias is nullptr or beta is not 0. M, N and K are
// positive. scratch: packed_product_scratch_bytes, aligned to 64 bytes. 2*M*N*K operations, or about half of
// them if c is symmetric; bound by arithmetic.
template <class T, class Result>
void packed_product(Result* c, Operand<T> a, Operand<T> b, const T* bias, size_t M, size_t N, size_t K,
                    void* scratch, const GeneralProduct<Result>& general = {}) {
    packed_product_detail::multiply<false>(c, a, b, bias, M, N, K, scratch, general);
}

// The same with bf16_pairs.h's products of pairs, which take half of the instructions where processors have
// them. K is even. A matrix whose rows lie along K is aligned to 4 bytes, and its stride is even.
template <class Result>
void packed_pairs_product(Result* c, Operand<bfloat16> a, Operand<bfloat16> b, const bfloat16* bias, size_t M,
                          size_t N, size_t K, void* scratch, const GeneralProduct<Result>& general = {}) {
    // Calls body with the pairs of x, which lie in one row if its rows lie along K.
    const auto with_pairs = [](const Operand<bfloat16>& x, bool along_k, auto body) {
        using packed_product_detail::SplitPair;
        if (along_k) body(Operand{reinterpret_cast<const float*>(x.data), x.stride / 2, x.transposed});
        // A step of K is two rows.
        else body(Operand<SplitPair>{reinterpret_cast<const SplitPair*>(x.data), x.stride * 2, x.transposed});
    };
    with_pairs(a, !a.transposed, [&](auto a_pairs) {
        with_pairs(b, b.transposed, [&](auto b_pairs) {
            packed_product_detail::multiply<true>(c, a_pairs, b_pairs, bias, M, N, K / 2, scratch, general);
        });
    });
}
