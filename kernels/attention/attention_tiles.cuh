// attention_tiles.cuh: how the kernels of attention.cuh divide their work
//   Threads own rows (queries, or keys in the kernel for dK and dV) and keep what they need of them until the
//   end; the other side passes by in tiles of shared memory. An owned row is element n of a Vec:
//     owned            own[c][n] = column c of the n-th row
//     dot_products     dots[r][n] = sum over c of tile[r][c] * own[c][n]
//     accumulate       own[c][n] += sum over r of tile[r][c] * weights[r][n]
//   Both multiply a number from the tile by a Vec, so neither needs a transposed tile or, within a Vec,
//   shuffles. The maximum and the sum of a row are computed element by element.
//   GPU: D/16 lanes of a warp share `rows` rows, with 16 columns each in registers; one shuffle tree adds up
//   a dot product.
//   CPU: one thread owns strips of 16 rows (an AVX-512 register) with all columns, in its first-level cache.
//   Columns from HS to D, and rows past T, are zeros that are not stored.
#pragma once
#include "kernels/attention/attention_head.cuh"

template <class W, int D_, int GpuRows, int GpuStep>
struct AttentionTiling {
    // One thread does the work of a block (on the CPU), so that no thread waits for another.
    static constexpr bool one_thread = W::threads == 1;
    static constexpr int D = D_;  // HS, rounded up
    static constexpr int lanes = one_thread ? 1 : D / 16;
    static constexpr int columns = D / lanes;                          // columns of a row in one lane
    static constexpr int rows = one_thread ? 16 : GpuRows;             // elements of a Vec
    static constexpr int strips = one_thread ? (D <= 64 ? 4 : 2) : 1;  // of `rows` rows, one below the other
    static constexpr int block = one_thread ? 32 : 128;
    static constexpr int threads = one_thread ? 1 : block;  // threads of the block that do work
    // columns that are loaded at once
    static constexpr int group = one_thread ? 16 : 4;
    // rows in shared memory
    static constexpr int tile = one_thread ? 64 : 32;
    // rows of a tile whose dot products are kept at once
    static constexpr int step = one_thread ? tile : GpuStep;
    // rows of a tile whose dot products are summed at once
    static constexpr int row_sums = one_thread ? simt::cpu_register_sums : GpuStep;
    // columns that are summed at once
    static constexpr int column_sums = one_thread ? simt::cpu_register_sums : group;
    // rows of the threads that must take part in the same collectives
    static constexpr int warp_rows = one_thread ? rows : simt::warp_size / lanes * rows;
    static constexpr int block_rows = threads / lanes * rows * strips;
    using Rows = Vec<float, rows>;
    static_assert(lanes * group <= D && columns % group == 0 && tile % step == 0 &&
                  block_rows % warp_rows == 0);
};

// tile (Tiling::tile, D) = the rows from `begin` on
template <class Tiling, class T>
__device__ __forceinline__ void load_tile(float* tile, HeadRows<const T> x, int begin) {
    constexpr int group = Tiling::group;
    const bool aligned = x.columns % group == 0;
    UNROLL_ONCE
    for (int i = (Tiling::one_thread ? 0 : threadIdx.x) * group; i < Tiling::tile * Tiling::D;
         i += Tiling::threads * group) {
        const int row = begin + i / Tiling::D, column = i % Tiling::D;
        if (aligned && row < x.count && column < x.columns)
            simt::store_shared(tile + i, load<group>(x.at(row, column)));
        else {
            UNROLL
            for (int j = 0; j < group; j++) tile[i + j] = x.element(row, column + j);
        }
    }
}

// tile (Tiling::tile) = one number for each of the rows from `begin` on, and `outside` past the last of
// `count` rows
template <class Tiling>
__device__ __forceinline__ void load_numbers(float* tile, const float* of_rows, int begin, int count,
                                             float outside) {
    for (int i = Tiling::one_thread ? 0 : threadIdx.x; i < Tiling::tile; i += Tiling::threads)
        tile[i] = begin + i < count ? of_rows[begin + i] : outside;
}

// A lane's columns come in groups, with its neighbours' groups in between, so that the lanes of a row read
// neighbouring parts of a tile's row.
template <class Tiling>
__device__ __forceinline__ int tile_column(int column, int lane) {
    return column * Tiling::lanes + lane * Tiling::group;
}

// own = rows of x, times factor
template <class Tiling, class T>
__device__ __forceinline__ void load_own(typename Tiling::Rows* own, HeadRows<const T> x, float factor,
                                         int row, int lane) {
    constexpr int group = Tiling::group;
    UNROLL
    for (int c = 0; c < Tiling::columns; c += group) {
        Vec<float, group> in_memory[Tiling::rows];
        const int column = tile_column<Tiling>(c, lane);
        if (x.columns % group == 0 && row + Tiling::rows <= x.count && column < x.columns) {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) in_memory[n] = load<group>(x.at(row + n, column));
        } else {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) {
                UNROLL
                for (int i = 0; i < group; i++) in_memory[n][i] = x.element(row + n, column + i);
            }
        }
        typename Tiling::Rows columns[group];
        simt::transpose(columns, in_memory);
        UNROLL
        for (int i = 0; i < group; i++) {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) own[c + i][n] = columns[i][n] * factor;
        }
    }
}

// rows of x = own * factor, with one factor for each row
template <class Tiling, class T>
__device__ __forceinline__ void store_own(HeadRows<T> x, const typename Tiling::Rows* own,
                                          const typename Tiling::Rows& factor, int row, int lane) {
    constexpr int group = Tiling::group;
    UNROLL
    for (int c = 0; c < Tiling::columns; c += group) {
        typename Tiling::Rows columns[group];
        UNROLL
        for (int i = 0; i < group; i++) {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) columns[i][n] = own[c + i][n] * factor[n];
        }
        Vec<float, group> in_memory[Tiling::rows];
        simt::transpose(in_memory, columns);
        const int column = tile_column<Tiling>(c, lane);
        if (x.columns % group == 0 && row + Tiling::rows <= x.count && column < x.columns) {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) store<group>(x.at(row + n, column), in_memory[n]);
        } else {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) {
                UNROLL
                for (int i = 0; i < group; i++) {
                    if (row + n < x.count && column + i < x.columns)
                        *x.at(row + n, column + i) = T(in_memory[n][i]);
                }
            }
        }
    }
}

// dots[r][n] = sum over c of tile[r][c] * own[c][n], for r < count
template <class Tiling>
__device__ __forceinline__ void dot_products(typename Tiling::Rows* dots, const float* tile,
                                             const typename Tiling::Rows* own, int count, int lane) {
    constexpr int group = Tiling::row_sums, at_once = Tiling::one_thread ? 1 : Tiling::group;
    UNROLL
    for (int r0 = 0; r0 < count; r0 += group) {
        typename Tiling::Rows sums[group];
        UNROLL_REGISTERS
        for (int r = 0; r < group; r++) sums[r] = simt::broadcast<Tiling::rows>(0.0f);
        UNROLL
        for (int c = 0; c < Tiling::columns; c += at_once) {
            const float* first = tile + r0 * Tiling::D + tile_column<Tiling>(c, lane);
            if constexpr (Tiling::one_thread) {
                simt::multiply_add(sums, first, Tiling::D, own[c]);
            } else {
                UNROLL
                for (int r = 0; r < group; r++) {
                    const auto factors = load<at_once>(first + r * Tiling::D);
                    UNROLL
                    for (int i = 0; i < at_once; i++) simt::multiply_add(sums[r], factors[i], own[c + i]);
                }
            }
        }
        UNROLL_REGISTERS
        for (int r = 0; r < group; r++) {
            if constexpr (Tiling::lanes > 1) {
                UNROLL
                for (int n = 0; n < Tiling::rows; n++) sums[r][n] = simt::row_sum<Tiling::lanes>(sums[r][n]);
            }
            dots[r0 + r] = sums[r];
        }
    }
}

// own[c][n] += sum over r < count of tile[r][c] * weights[r][n]
template <class Tiling>
__device__ __forceinline__ void accumulate(typename Tiling::Rows* own, const float* tile,
                                           const typename Tiling::Rows* weights, int count, int lane) {
    constexpr int group = Tiling::column_sums;
    UNROLL
    for (int c = 0; c < Tiling::columns; c += group) {
        typename Tiling::Rows sums[group];
        UNROLL_REGISTERS
        for (int i = 0; i < group; i++) sums[i] = own[c + i];
        UNROLL
        for (int r = 0; r < count; r++) {
            const float* factors = tile + r * Tiling::D + tile_column<Tiling>(c, lane);
            if constexpr (Tiling::one_thread) simt::multiply_add(sums, factors, 1, weights[r]);
            else {
                const auto loaded = load<group>(factors);
                UNROLL
                for (int i = 0; i < group; i++) simt::multiply_add(sums[i], loaded[i], weights[r]);
            }
        }
        UNROLL_REGISTERS
        for (int i = 0; i < group; i++) own[c + i] = sums[i];
    }
}

struct RowRange {
    int begin, end;
};

// A thread's place in its block.
template <class Tiling>
struct AttentionThread {
    int lane = Tiling::one_thread ? 0 : static_cast<int>(threadIdx.x) % Tiling::lanes;
    int group = Tiling::one_thread ? 0 : static_cast<int>(threadIdx.x) / Tiling::lanes;
    int first;  // first row of the block

    __device__ explicit AttentionThread(int first) : first(first) {}
    __device__ int row(int strip) const { return first + (group + strip) * Tiling::rows; }
    // Begin and end of the rows of the thread's whole warp. All its threads use the same range, because
    // collectives need the whole warp.
    __device__ int begin(int strip) const {
        return first + (row(strip) - first) / Tiling::warp_rows * Tiling::warp_rows;
    }
    __device__ int end(int strip) const { return begin(strip) + Tiling::warp_rows; }
    // The strip's queries see these keys of the tile that begins with key k0.
    __device__ RowRange keys_seen(int strip, int k0, int T) const {
        return {0, begin(strip) < T ? min(min(end(strip), T) - k0, Tiling::tile) : 0};
    }
    // The strip's keys are seen by these queries of the tile that begins with query q0.
    __device__ RowRange queries_seeing(int strip, int q0, int T) const {
        return {max(begin(strip) - q0, 0), min(T - q0, Tiling::tile)};
    }
};

// Rows of the tile that the next step takes. This is a constant on the GPU, where a step is held in
// registers.
template <class Tiling>
__device__ __forceinline__ int step_rows(int left) {
    if constexpr (Tiling::step == Tiling::row_sums) return Tiling::step;
    else
        return left < Tiling::step ? simt::ceil_div(left, Tiling::row_sums) * Tiling::row_sums : Tiling::step;
}

// The rows from begin to end pass by in tiles. load(first) fills shared memory with the tile whose first
// row is `first`. range(strip, first) names the rows of the tile that the strip needs, and body(strip,
// first, r0, count) computes with `count` of them, from the tile's row r0 on.
template <class Tiling, class Load, class Range, class Body>
__device__ __forceinline__ void for_each_step(int begin, int end, Load load, Range range, Body body) {
    for (int first = begin; first < end; first += Tiling::tile) {
        simt::row_barrier<Tiling::threads>();  // all threads have read the previous tile
        load(first);
        simt::row_barrier<Tiling::threads>();
        UNROLL
        for (int s = 0; s < Tiling::strips; s++) {
            const RowRange rows = range(s, first);
            UNROLL_ONCE
            for (int r0 = rows.begin; r0 < rows.end; r0 += Tiling::step)
                body(s, first, r0, step_rows<Tiling>(rows.end - r0));
        }
    }
}

template <class Rows, int Count>
__device__ __forceinline__ void set_zero(Rows (&own)[Count]) {
    UNROLL
    for (int c = 0; c < Count; c++)
        own[c] = simt::broadcast<static_cast<int>(sizeof(Rows) / sizeof(float))>(0.0f);
}

// p holds the scores of `count` queries and becomes P; ds holds their dP and becomes dS. distance is the
// first query minus the first key.
template <class Tiling>
__device__ __forceinline__ void weights_and_gradients(typename Tiling::Rows (&p)[Tiling::step],
                                                      typename Tiling::Rows (&ds)[Tiling::step],
                                                      const float* lse, const float* delta, int count,
                                                      int distance) {
    UNROLL
    for (int r = 0; r < count; r++) {
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) {
            const float e = simt::exp(p[r][n] - lse[r]);
            p[r][n] = n <= distance + r ? e : 0.0f;
            ds[r][n] = p[r][n] * (ds[r][n] - delta[r]);
        }
    }
}
