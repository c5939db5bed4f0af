// attention_mma.cuh: the attention of attention.cuh on tensor cores, for bf16 and head sizes that are
//   multiples of 8 (rows aligned to 16 bytes)
//   Formulas and tensors are those of attention.cuh. Products are of bf16 with fp32 sums, the softmax is
//   fp32, and P and dS are rounded to bf16.
//   Exponentials are powers of 2 instead of e: variables that end in 2 (scale2, lse2) include the factor
//   log2(e).
//   Dao 2023, arXiv:2307.08691 (FlashAttention-2)
//
// A warp owns rows (queries; in the kernel for dK and dV keys). It keeps what it needs of them in
// registers to the end, laid out as mma takes its left factor and leaves its sums. The other side passes
// by in tiles in shared memory; while one tile is worked on, the next is being copied. A step processes
// `step` rows of a tile:
//   scores = own * tile^T,   weights = a function of the scores, computed in the same registers,
//   own sums += weights * tile
// Columns past HS and rows past T are zeros: a query of zeros adds nothing to dK and dV, and a key of
// zeros comes after every query, so it is masked.
#pragma once
#include <algorithm>

#include "kernels/attention/attention_head.cuh"

template <int D_, int RowTiles, int Step, int Blocks>
struct MmaTiling {
    static constexpr int D = D_;                // HS, rounded up
    static constexpr int depth = D / 16;        // products of (16, 16) along a row
    static constexpr int row_tiles = RowTiles;  // tiles of 16 rows that a warp owns
    static constexpr int step = Step;
    static constexpr int blocks = Blocks;  // for each multiprocessor; this limits a thread's registers
    static constexpr int block = 128;
    static constexpr int warp_rows = 16 * row_tiles;
    static constexpr int block_rows = block / simt::warp_size * warp_rows;
    static constexpr int tile = 64;  // rows in shared memory
    // Elements from row to row of a tile: an odd number of 16-byte pieces, so that the eight rows of a
    // matrix lie in different banks.
    static constexpr int pitch = D + 8;
    static constexpr int tile_elements = tile * pitch;
    static_assert(D % 16 == 0 && tile % step == 0 && step % 16 == 0);
};

// Each tiling has the most rows for a warp (a tile's numbers are then loaded into registers less often) and
// the longest step that fit into the registers without spills on all architectures. For dK and dV, two
// tiles of rows at D = 64 would spill.
template <int D>
using MmaForwardTiling = MmaTiling<D, (D <= 64 ? 2 : 1), (D == 96 ? 32 : 64), (D == 96 ? 3 : 2)>;
template <int D>
using MmaBackwardQTiling = MmaTiling<D, (D <= 64 ? 2 : 1), 32, 2>;
template <int D>
using MmaBackwardKVTiling = MmaTiling<D, 1, (D <= 32 ? 32 : 16), (D <= 64 ? 3 : 2)>;

template <int Rows, int Columns>  // (16 * Rows, 16 * Columns)
using MmaFactor = Vec<uint32_t, 4>[Rows][Columns];
template <int Rows, int Columns>  // (16 * Rows, 8 * Columns)
using MmaSums = Vec<float, 4>[Rows][Columns];

// The row of a lane's first two sums, and the column of the first of them. Its other two sums are 8 rows
// below.
__device__ __forceinline__ int mma_row() { return static_cast<int>(threadIdx.x) % simt::warp_size / 4; }
__device__ __forceinline__ int mma_column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

// factor = rows of x, directly from global memory
template <int Rows, int Depth>
__device__ __forceinline__ void load_factor(MmaFactor<Rows, Depth>& factor, HeadRows<const bfloat16> x,
                                            int row) {
    UNROLL
    for (int m = 0; m < Rows; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int r = row + 16 * m + mma_row() + 8 * h,
                      columns = r < x.count ? x.columns - mma_column() : 0;
            const bfloat16* of_lane = x.at(r, mma_column());
            UNROLL
            for (int i = 0; i < 2 * Depth; i++) {
                factor[m][i / 2][i % 2 * 2 + h] = 0;
                if (8 * i < columns) factor[m][i / 2][i % 2 * 2 + h] = simt::load_pair(of_lane + 8 * i);
            }
        }
    }
}

// rows of x = sums * scale, with one scale for each of a lane's rows
template <int Rows, int Columns>
__device__ __forceinline__ void store_sums(HeadRows<bfloat16> x, const MmaSums<Rows, Columns>& sums,
                                           const float (&scale)[Rows][2], int row) {
    row = simt::opaque(row);
    UNROLL
    for (int m = 0; m < Rows; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int r = row + 16 * m + mma_row() + 8 * h,
                      columns = r < x.count ? x.columns - mma_column() : 0;
            bfloat16* of_lane = x.at(r, mma_column());
            UNROLL
            for (int n = 0; n < Columns; n++) {
                const Vec<float, 2> values{sums[m][n][2 * h] * scale[m][h],
                                           sums[m][n][2 * h + 1] * scale[m][h]};
                if (8 * n < columns) store(of_lane + 8 * n, values);
            }
        }
    }
}

template <int Rows, int Columns>
__device__ __forceinline__ void set_zero(MmaSums<Rows, Columns>& sums) {
    UNROLL
    for (int m = 0; m < Rows; m++) {
        UNROLL
        for (int n = 0; n < Columns; n++) sums[m][n] = simt::broadcast<4>(0.0f);
    }
}

// The two matrices a and b that pass by, tile after tile. Shared memory holds two tiles of each: one to
// work on, and one that is being copied. The first half of the threads copies a, the second half b.
template <class Tiling>
class PassingTiles {
public:
    __device__ explicit PassingTiles(simt::SharedMemory& shared)
        : a_tiles_(shared.take<bfloat16>(2 * Tiling::tile_elements)),
          b_tiles_(shared.take<bfloat16>(2 * Tiling::tile_elements)) {}
    // Starts copying the tiles whose first row is `row`. Row r is number r + shift of all rows that pass by.
    __device__ __forceinline__ void copy(HeadRows<const bfloat16> a, HeadRows<const bfloat16> b, int row,
                                         int shift = 0) {
        // 16 bytes a thread; a power of two
        constexpr int threads_a_row = Tiling::D <= 32 ? 4 : Tiling::D <= 64 ? 8 : 16;
        constexpr int half = Tiling::block / 2, rows_at_once = half / threads_a_row;
        // opaque: nothing computed from it stays in registers through the loop over tiles
        const int thread = simt::opaque(static_cast<int>(threadIdx.x));
        const bool copies_a = thread < half;
        const int row_of_thread = row + thread % half / threads_a_row, column = thread % threads_a_row * 8;
        const size_t stride = copies_a ? a.stride : b.stride;
        const bfloat16* from = (copies_a ? a.first : b.first) + row_of_thread * stride + column;
        bfloat16* to =
            (copies_a ? a_tiles_ : b_tiles_) + row_in_tiles(row_of_thread + shift) * Tiling::pitch + column;
        // rows left to copy; none if the columns are past HS
        const int rows = column < a.columns ? a.count - row_of_thread : 0;
        UNROLL
        for (int r = 0; r < Tiling::tile; r += rows_at_once) {
            if (column < Tiling::D) simt::cp_async<8>(to + r * Tiling::pitch, from, r < rows);
            from += rows_at_once * stride;
        }
    }
    // The index of a row within the two tiles.
    static __device__ int row_in_tiles(int row) { return row & (2 * Tiling::tile - 1); }
    __device__ const bfloat16* a(int row) const { return a_tiles_ + row_in_tiles(row) * Tiling::pitch; }
    __device__ const bfloat16* b(int row) const { return b_tiles_ + row_in_tiles(row) * Tiling::pitch; }

private:
    bfloat16 *a_tiles_, *b_tiles_;
};

// sums += own * rows^T, for Columns * 8 rows of a tile
template <class Tiling, int Rows, int Columns>
__device__ __forceinline__ void multiply_transposed(MmaSums<Rows, Columns>& sums,
                                                    const MmaFactor<Rows, Tiling::depth>& own,
                                                    const bfloat16* rows) {
    // A (16, 16) piece is four (8, 8) matrices in the order above left, above right, below left, below
    // right. Transposed for the right factor, they are two pairs of registers.
    const int lane = static_cast<int>(threadIdx.x) % simt::warp_size;
    const bfloat16* of_lane = rows + (lane / 16 * 8 + lane % 8) * Tiling::pitch + lane / 8 % 2 * 8;
    UNROLL
    for (int k = 0; k < Tiling::depth; k++) {
        UNROLL
        for (int n = 0; n < Columns; n += 2) {
            const Vec<uint32_t, 4> b = simt::ldmatrix(of_lane + 8 * n * Tiling::pitch + 16 * k);
            UNROLL
            for (int m = 0; m < Rows; m++) {
                simt::mma(sums[m][n], own[m][k], b[0], b[1]);
                simt::mma(sums[m][n + 1], own[m][k], b[2], b[3]);
            }
        }
    }
}

// sums += weights * rows, for Depth * 16 rows of a tile
template <class Tiling, int Rows, int Depth>
__device__ __forceinline__ void multiply(MmaSums<Rows, 2 * Tiling::depth>& sums,
                                         const MmaFactor<Rows, Depth>& weights, const bfloat16* rows) {
    // The four (8, 8) matrices in the order above left, below left, above right, below right.
    const int lane = static_cast<int>(threadIdx.x) % simt::warp_size;
    const bfloat16* of_lane = rows + lane % 16 * Tiling::pitch + lane / 16 * 8;
    UNROLL
    for (int k = 0; k < Depth; k++) {
        UNROLL
        for (int n = 0; n < 2 * Tiling::depth; n += 2) {
            const Vec<uint32_t, 4> b = simt::ldmatrix_trans(of_lane + 16 * k * Tiling::pitch + 8 * n);
            UNROLL
            for (int m = 0; m < Rows; m++) {
                simt::mma(sums[m][n], weights[m][k], b[0], b[1]);
                simt::mma(sums[m][n + 1], weights[m][k], b[2], b[3]);
            }
        }
    }
}

// factor = sums, rounded to bf16; each value stays in its lane.
template <int Rows, int Depth>
__device__ __forceinline__ void round_sums(MmaFactor<Rows, Depth>& factor,
                                           const MmaSums<Rows, 2 * Depth>& sums) {
    UNROLL
    for (int m = 0; m < Rows; m++) {
        UNROLL
        for (int k = 0; k < Depth; k++) {
            UNROLL
            for (int i = 0; i < 4; i++)
                factor[m][k][i] =
                    simt::bf16_pair(sums[m][2 * k + i / 2][i % 2 * 2], sums[m][2 * k + i / 2][i % 2 * 2 + 1]);
        }
    }
}

// Sets scores to -infinity where the key is later than the query. row and column are the positions of
// the first score.
enum class MmaOwn { queries, keys };
template <MmaOwn own, int Rows, int Columns>
__device__ __forceinline__ void mask_scores(MmaSums<Rows, Columns>& scores, int row, int column) {
    UNROLL
    for (int m = 0; m < Rows; m++) {
        UNROLL
        for (int n = 0; n < Columns; n++) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                const int r = row + 16 * m + mma_row() + i / 2 * 8, c = column + 8 * n + mma_column() + i % 2;
                if (own == MmaOwn::queries ? c > r : r > c) scores[m][n][i] = -INFINITY;
            }
        }
    }
}

// The first row that the thread's warp owns.
template <class Tiling>
__device__ __forceinline__ int mma_first_row(int block_row) {
    return block_row + static_cast<int>(threadIdx.x) / simt::warp_size * Tiling::warp_rows;
}

// The warp's own rows are queries; keys and values pass by.
template <int D, class Tiling = MmaForwardTiling<D>>
__global__ void __launch_bounds__(Tiling::block, Tiling::blocks)
    attention_mma_forward_kernel(bfloat16* out, float* lse, const bfloat16* qkv, AttentionShape shape,
                                 int group, float scale, float scale2) {
    constexpr int rows = Tiling::row_tiles;
    simt::SharedMemory shared;
    const AttentionBlock block(shape, Tiling::block_rows, group);
    const int block_row = (block.tiles - 1 - block.tile) * Tiling::block_rows;  // last queries have most keys
    const int row = mma_first_row<Tiling>(block_row),
              end = row < shape.T ? min(row + Tiling::warp_rows, shape.T) : 0;
    const int keys = min(block_row + Tiling::block_rows, shape.T);

    PassingTiles<Tiling> kv(shared);
    const auto copy = [&](int tile) {
        const AttentionBlock again = block.computed_again();
        kv.copy(again.packed(qkv, 1), again.packed(qkv, 2), tile);
    };
    copy(0);
    simt::cp_async_commit();
    MmaFactor<rows, Tiling::depth> own_q;
    MmaSums<rows, 2 * Tiling::depth> own_out;
    float maximum[rows][2], sum[rows][2];  // for the lane's rows; each sum covers only its columns
    load_factor(own_q, block.packed(qkv, 0), row);
    set_zero(own_out);
    UNROLL
    for (int m = 0; m < rows; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            maximum[m][h] = -INFINITY;
            sum[m][h] = 0.0f;
        }
    }

    UNROLL_ONCE
    for (int tile = 0; tile < keys; tile += Tiling::tile) {
        simt::cp_async_wait<0>();
        __syncthreads();  // the tile has arrived, and all reads of the previous tile are done
        if (tile + Tiling::tile < keys) copy(tile + Tiling::tile);
        simt::cp_async_commit();
        UNROLL_ONCE
        for (int k0 = tile; k0 < min(tile + Tiling::tile, end); k0 += Tiling::step) {
            MmaSums<rows, Tiling::step / 8> p;
            set_zero(p);
            multiply_transposed<Tiling>(p, own_q, kv.a(k0));
            if (k0 + Tiling::step > row + 1) mask_scores<MmaOwn::queries>(p, row, k0);
            UNROLL
            for (int m = 0; m < rows; m++) {
                UNROLL
                for (int h = 0; h < 2; h++) {
                    float next = maximum[m][h];
                    UNROLL
                    for (int n = 0; n < Tiling::step / 8; n++)
                        next = fmaxf(next, fmaxf(p[m][n][2 * h], p[m][n][2 * h + 1]));
                    next = simt::row_max<4>(next);
                    const float next2 = next * scale2, shrink = simt::exp2(maximum[m][h] * scale2 - next2);
                    maximum[m][h] = next;
                    sum[m][h] *= shrink;
                    UNROLL
                    for (int n = 0; n < Tiling::step / 8; n++) {
                        UNROLL
                        for (int j = 2 * h; j < 2 * h + 2; j++) {
                            p[m][n][j] = simt::exp2(p[m][n][j] * scale2 - next2);
                            sum[m][h] += p[m][n][j];
                        }
                    }
                    UNROLL
                    for (int n = 0; n < 2 * Tiling::depth; n++) {
                        own_out[m][n][2 * h] *= shrink;
                        own_out[m][n][2 * h + 1] *= shrink;
                    }
                }
            }
            MmaFactor<rows, Tiling::step / 16> weights;
            round_sums(weights, p);
            multiply<Tiling>(own_out, weights, kv.b(k0));
        }
    }

    const AttentionBlock again = block.computed_again();
    UNROLL
    for (int m = 0; m < rows; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int r = row + 16 * m + mma_row() + 8 * h;
            sum[m][h] = simt::row_sum<4>(sum[m][h]);
            if (mma_column() == 0 && r < shape.T)
                lse[again.statistics() + r] = maximum[m][h] * scale + simt::log(sum[m][h]);
            sum[m][h] = 1.0f / sum[m][h];
        }
    }
    store_sums(again.plain(out), own_out, sum, row);
}

// The warp's own rows are queries; keys and values pass by. Writes delta for the kernel below.
template <int D, class Tiling = MmaBackwardQTiling<D>>
__global__ void __launch_bounds__(Tiling::block, Tiling::blocks)
    attention_mma_backward_q_kernel(bfloat16* dqkv, float* delta, const bfloat16* dout, const bfloat16* qkv,
                                    const bfloat16* out, const float* lse, AttentionShape shape, int group,
                                    float scale, float scale2) {
    constexpr int rows = Tiling::row_tiles;
    simt::SharedMemory shared;
    const AttentionBlock block(shape, Tiling::block_rows, group);
    const int block_row = (block.tiles - 1 - block.tile) * Tiling::block_rows;  // last queries have most keys
    const int row = mma_first_row<Tiling>(block_row),
              end = row < shape.T ? min(row + Tiling::warp_rows, shape.T) : 0;
    const int keys = min(block_row + Tiling::block_rows, shape.T);

    PassingTiles<Tiling> kv(shared);
    const auto copy = [&](int tile) {
        const AttentionBlock again = block.computed_again();
        kv.copy(again.packed(qkv, 1), again.packed(qkv, 2), tile);
    };
    copy(0);
    simt::cp_async_commit();
    MmaFactor<rows, Tiling::depth> own_q, own_dout;
    MmaSums<rows, 2 * Tiling::depth> own_dq;
    float own_lse2[rows][2], own_delta[rows][2], scales[rows][2];
    load_factor(own_q, block.plain(out), row);  // out is needed only for delta; q replaces it below
    load_factor(own_dout, block.plain(dout), row);
    UNROLL
    for (int m = 0; m < rows; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float sum = 0.0f;  // delta = rowsum(dout * out)
            UNROLL
            for (int i = 0; i < 2 * Tiling::depth; i++) {
                const Vec<float, 2> a = simt::floats_of_pair(own_q[m][i / 2][i % 2 * 2 + h]);
                const Vec<float, 2> b = simt::floats_of_pair(own_dout[m][i / 2][i % 2 * 2 + h]);
                sum += a[0] * b[0] + a[1] * b[1];
            }
            const int r = row + 16 * m + mma_row() + 8 * h;
            own_delta[m][h] = simt::row_sum<4>(sum);
            if (mma_column() == 0 && r < shape.T) delta[block.statistics() + r] = own_delta[m][h];
            own_lse2[m][h] = r < shape.T ? lse[block.statistics() + r] * simt::log2_e : 0.0f;
            scales[m][h] = scale;
        }
    }
    load_factor(own_q, block.packed(qkv, 0), row);
    set_zero(own_dq);

    UNROLL_ONCE
    for (int tile = 0; tile < keys; tile += Tiling::tile) {
        simt::cp_async_wait<0>();
        __syncthreads();  // the tile has arrived, and all reads of the previous tile are done
        if (tile + Tiling::tile < keys) copy(tile + Tiling::tile);
        simt::cp_async_commit();
        UNROLL_ONCE
        for (int k0 = tile; k0 < min(tile + Tiling::tile, end); k0 += Tiling::step) {
            MmaSums<rows, Tiling::step / 8> scores, ds;
            set_zero(scores);
            multiply_transposed<Tiling>(scores, own_q, kv.a(k0));
            if (k0 + Tiling::step > row + 1) mask_scores<MmaOwn::queries>(scores, row, k0);
            set_zero(ds);
            multiply_transposed<Tiling>(ds, own_dout, kv.b(k0));
            UNROLL
            for (int m = 0; m < rows; m++) {
                UNROLL
                for (int n = 0; n < Tiling::step / 8; n++) {
                    UNROLL
                    for (int i = 0; i < 4; i++) {
                        const float p = simt::exp2(scores[m][n][i] * scale2 - own_lse2[m][i / 2]);
                        ds[m][n][i] = p * (ds[m][n][i] - own_delta[m][i / 2]);
                    }
                }
            }
            MmaFactor<rows, Tiling::step / 16> weights;
            round_sums(weights, ds);
            multiply<Tiling>(own_dq, weights, kv.a(k0));
        }
    }
    store_sums(block.packed(dqkv, 0), own_dq, scales, row);
}

// The warp's own rows are keys; queries and their gradients pass by, from the first own key on: those of one
// head after those of another, where several share the keys. The scores are those of attention.cuh,
// transposed.
template <int D, class Tiling = MmaBackwardKVTiling<D>>
__global__ void __launch_bounds__(Tiling::block, Tiling::blocks)
    attention_mma_backward_kv_kernel(bfloat16* dqkv, const bfloat16* dout, const bfloat16* qkv,
                                     const float* lse, const float* delta, AttentionShape shape, int queries,
                                     int group, float scale, float scale2) {
    constexpr int rows = Tiling::row_tiles;
    simt::SharedMemory shared;
    float* lse_tiles = shared.take<float>(2 * Tiling::tile);
    float* delta_tiles = shared.take<float>(2 * Tiling::tile);
    const AttentionBlock block(shape, Tiling::block_rows, group, queries);
    // Computed where they are used, instead of staying in registers; first keys have most queries.
    const auto block_row = [&] { return simt::opaque(block.tile) * Tiling::block_rows; };
    const auto tiles = [&] { return simt::ceil_div(shape.T - block_row(), Tiling::tile); };  // of a head
    const auto first_row = [&](int n) { return block_row() + n % tiles() * Tiling::tile; };  // of tile n
    const int row = mma_first_row<Tiling>(block_row()),
              begin = row < shape.T ? row / Tiling::step * Tiling::step : shape.T;

    static_assert(Tiling::block == 2 * Tiling::tile);  // half of the threads copy lse, the others delta
    PassingTiles<Tiling> passing(shared);
    const auto copy = [&](int number) {
        const int n = simt::opaque(number), tile = first_row(n), shift = n * Tiling::tile - tile;
        const AttentionBlock again = block.computed_again(n / tiles());
        passing.copy(again.packed(qkv, 0), again.plain(dout), tile, shift);
        const int thread = simt::opaque(static_cast<int>(threadIdx.x)), q = tile + thread % Tiling::tile;
        const bool copies_lse = thread < Tiling::tile;
        simt::cp_async<1>((copies_lse ? lse_tiles : delta_tiles) + passing.row_in_tiles(q + shift),
                          (copies_lse ? lse : delta) + again.statistics() + q, q < shape.T);
    };
    copy(0);
    simt::cp_async_commit();
    MmaFactor<rows, Tiling::depth> own_k, own_v;
    MmaSums<rows, 2 * Tiling::depth> own_dk, own_dv;
    load_factor(own_k, block.packed(qkv, 1), row);
    load_factor(own_v, block.packed(qkv, 2), row);
    set_zero(own_dk);
    set_zero(own_dv);

    UNROLL_ONCE
    for (int n = 0; n < tiles() * queries; n++) {
        simt::cp_async_wait<0>();
        __syncthreads();  // the tile has arrived, and all reads of the previous tile are done
        if (n + 1 < tiles() * queries) copy(n + 1);
        simt::cp_async_commit();
        const int tile = first_row(simt::opaque(n)), shift = n * Tiling::tile - tile;
        UNROLL_ONCE
        for (int q0 = max(tile, begin); q0 < min(tile + Tiling::tile, shape.T); q0 += Tiling::step) {
            const int column = passing.row_in_tiles(q0 + shift) + mma_column();
            MmaSums<rows, Tiling::step / 8> scores, ds;
            // p is rounded at once, because it then needs half of the registers
            MmaFactor<rows, Tiling::step / 16> p, weights;
            set_zero(scores);
            multiply_transposed<Tiling>(scores, own_k, passing.a(q0 + shift));
            if (q0 < row + Tiling::warp_rows - 1) mask_scores<MmaOwn::keys>(scores, row, q0);
            UNROLL
            for (int n = 0; n < Tiling::step / 8; n++) {
                const Vec<float, 2> lse_n = load<2>(lse_tiles + column + 8 * n);
                UNROLL
                for (int m = 0; m < rows; m++) {
                    UNROLL
                    for (int i = 0; i < 4; i++)
                        scores[m][n][i] = simt::exp2(scores[m][n][i] * scale2 - lse_n[i % 2] * simt::log2_e);
                }
            }
            round_sums(p, scores);
            multiply<Tiling>(own_dv, p, passing.b(q0 + shift));
            set_zero(ds);
            multiply_transposed<Tiling>(ds, own_v, passing.b(q0 + shift));
            UNROLL
            for (int n = 0; n < Tiling::step / 8; n++) {
                const Vec<float, 2> delta_n = load<2>(delta_tiles + column + 8 * n);
                UNROLL
                for (int m = 0; m < rows; m++) {
                    UNROLL
                    for (int i = 0; i < 4; i++) {
                        ds[m][n][i] = simt::floats_of_pair(p[m][n / 2][n % 2 * 2 + i / 2])[i % 2] *
                                      (ds[m][n][i] - delta_n[i % 2]);
                    }
                }
            }
            round_sums(weights, ds);
            multiply<Tiling>(own_dk, weights, passing.a(q0 + shift));
        }
    }
    float scales[rows][2], ones[rows][2];
    UNROLL
    for (int m = 0; m < rows; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            scales[m][h] = scale;
            ones[m][h] = 1.0f;
        }
    }
    store_sums(block.packed(dqkv, 1), own_dk, scales, row);
    store_sums(block.computed_again().packed(dqkv, 2), own_dv, ones, row);
}

// True if these kernels compute with this width and type: a row must have at least a warp of threads,
// and the type must be bf16. At the CPU's own width they never run: there the instructions are emulated,
// which proves these kernels but takes 50 to 70 times as long as attention.cuh (measured).
template <class W, class T>
constexpr bool attention_mma_multiplies = W::threads > 1 && std::is_same_v<T, bfloat16>;

inline bool attention_mma_takes(AttentionShape shape) { return shape.HS % 8 == 0; }

// Heads whose blocks run side by side: as many as have their passing matrices within 16 MiB together, so
// that these are read from the second-level cache.
inline int attention_mma_group(AttentionShape shape) {
    const size_t bytes = 2 * sizeof(bfloat16) * shape.T * shape.HS,
                 heads = static_cast<size_t>(shape.B) * shape.NH;
    return static_cast<int>(std::clamp<size_t>((size_t{16} << 20) / bytes, 1, heads));
}

// Two products, half of each because attention is causal: 2 * B * NH * T^2 * HS flops; bound by arithmetic.
inline void attention_mma_forward(bfloat16* out, float* lse, const bfloat16* qkv, AttentionShape shape,
                                  stream_t stream) {
    for_head_size<32, 64, 96, 128>(shape.HS, [&](auto D) {
        using Tiling = MmaForwardTiling<D()>;
        launch(attention_mma_forward_kernel<D()>, attention_blocks<Tiling>(shape), Tiling::block,
               2 * simt::shared_size<bfloat16>(2 * Tiling::tile_elements), stream, out, lse, qkv, shape,
               attention_mma_group(shape), attention_scale(shape), attention_scale(shape) * simt::log2_e);
    });
}

// dqkv = the gradient of qkv. scratch: attention_scratch_bytes.
// Seven products, half of each: 7 * B * NH * T^2 * HS flops; bound by arithmetic. S and dP are computed
// twice, so that no sum is shared between blocks.
inline void attention_mma_backward(bfloat16* dqkv, const bfloat16* dout, const bfloat16* qkv,
                                   const bfloat16* out, const float* lse, float* scratch,
                                   AttentionShape shape, stream_t stream) {
    for_head_size<32, 64, 96, 128>(shape.HS, [&](auto D) {
        using QTiling = MmaBackwardQTiling<D()>;
        using KVTiling = MmaBackwardKVTiling<D()>;
        const size_t tiles_bytes = 2 * simt::shared_size<bfloat16>(2 * KVTiling::tile_elements);
        launch(attention_mma_backward_q_kernel<D()>, attention_blocks<QTiling>(shape), QTiling::block,
               tiles_bytes, stream, dqkv, scratch, dout, qkv, out, lse, shape, attention_mma_group(shape),
               attention_scale(shape), attention_scale(shape) * simt::log2_e);
        launch(attention_mma_backward_kv_kernel<D()>, attention_blocks<KVTiling>(shape, shape.queries()),
               KVTiling::block, tiles_bytes + 2 * simt::shared_size<float>(2 * KVTiling::tile), stream, dqkv,
               dout, qkv, lse, scratch, shape, shape.queries(),
               std::max(1, attention_mma_group(shape) / shape.queries()), attention_scale(shape),
               attention_scale(shape) * simt::log2_e);
    });
}
