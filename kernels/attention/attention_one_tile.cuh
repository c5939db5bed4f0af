// attention_one_tile.cuh: backward on a CPU where one thread has all rows of a head
//   Blocks that share a head cannot add to one dQ, so the kernels of attention.cuh compute S and dP twice. A
//   thread that has the whole head computes them once: 5 matrix products instead of 7, half of the
//   exponentials, and each row is read once. As in attention_backward_kv_kernel it owns the keys, while
//   queries and their gradients pass by; what these keys add to dQ needs dS with rows and columns exchanged.
#pragma once
#include "kernels/attention/attention_tiles.cuh"

// delta[r] = sum over c of out_tile[r][c] * dout_tile[r][c]
template <class Tiling>
__device__ __forceinline__ void tile_dots(float* delta, const float* out_tile, const float* dout_tile) {
    for (int r = 0; r < Tiling::tile; r++) {
        Vec<float, Tiling::group> sums = simt::broadcast<Tiling::group>(0.0f);
        simt::multiply_add(sums, load<Tiling::D>(out_tile + r * Tiling::D),
                           load<Tiling::D>(dout_tile + r * Tiling::D));
        delta[r] = simt::sum(sums);
    }
}

template <class W, int D, class T, class Tiling>
__global__ void attention_backward_one_tile_kernel(T* dqkv, const T* dout, const T* qkv, const T* out,
                                                   const float* lse, AttentionShape shape, float scale) {
    constexpr int rows = Tiling::rows;
    using Rows = typename Tiling::Rows;
    if (threadIdx.x > 0) return;
    simt::SharedMemory shared;
    const auto tile = [&] { return shared.take<float>(Tiling::tile * D); };
    float *q_tile = tile(), *k_tile = tile(), *out_tile = tile(), *dout_tile = tile();
    float *lse_tile = shared.take<float>(Tiling::tile), *delta_tile = shared.take<float>(Tiling::tile);

    const AttentionBlock block(shape, Tiling::block_rows, shape.B * shape.NKV, shape.queries());
    const auto k = block.packed(qkv, 1), v = block.packed(qkv, 2);
    const int strips = simt::ceil_div(shape.T, rows);
    Rows own_k[Tiling::strips][D], own_v[Tiling::strips][D], own_dk[Tiling::strips][D],
        own_dv[Tiling::strips][D], own_dq[Tiling::strips][D];
    for (int s = 0; s < strips; s++) {
        load_own<Tiling>(own_k[s], k, scale, s * rows, 0);
        load_own<Tiling>(own_v[s], v, 1.0f, s * rows, 0);
        set_zero(own_dk[s]);
        set_zero(own_dv[s]);
    }
    load_tile<Tiling>(k_tile, k, 0);

    for (int later = 0; later < shape.queries(); later++) {  // the head of q, after the block's
        const AttentionBlock passing = block.computed_again(later);
        load_tile<Tiling>(q_tile, passing.packed(qkv, 0), 0);
        load_tile<Tiling>(out_tile, passing.plain(out), 0);
        load_tile<Tiling>(dout_tile, passing.plain(dout), 0);
        load_numbers<Tiling>(lse_tile, lse + passing.statistics(), 0, shape.T, INFINITY);  // p = 0
        tile_dots<Tiling>(delta_tile, out_tile, dout_tile);
        for (int s = 0; s < strips; s++) set_zero(own_dq[s]);

        for (int s = 0; s < strips; s++) {
            // The strip's keys are seen by the queries from its first row on.
            const int first = s * rows, count = (strips - s) * rows;
            const float *q_rows = q_tile + first * D, *dout_rows = dout_tile + first * D;
            Rows p[Tiling::step], ds[Tiling::step];
            dot_products<Tiling>(p, q_rows, own_k[s], count, 0);
            dot_products<Tiling>(ds, dout_rows, own_v[s], count, 0);
            weights_and_gradients<Tiling>(p, ds, lse_tile + first, delta_tile + first, count, 0);
            accumulate<Tiling>(own_dv[s], dout_rows, p, count, 0);
            accumulate<Tiling>(own_dk[s], q_rows, ds, count, 0);
            for (int of_q = s; of_q < strips; of_q++) {
                Rows of_queries[rows];
                simt::transpose(of_queries, *reinterpret_cast<const Rows(*)[rows]>(ds + (of_q - s) * rows));
                accumulate<Tiling>(own_dq[of_q], k_tile + first * D, of_queries, rows, 0);
            }
        }
        for (int s = 0; s < strips; s++) {
            store_own<Tiling>(passing.packed(dqkv, 0), own_dq[s], simt::broadcast<rows>(scale), s * rows, 0);
        }
    }
    for (int s = 0; s < strips; s++) {
        store_own<Tiling>(block.packed(dqkv, 1), own_dk[s], simt::broadcast<rows>(scale), s * rows, 0);
        store_own<Tiling>(block.packed(dqkv, 2), own_dv[s], simt::broadcast<rows>(1.0f), s * rows, 0);
    }
}

// For T up to Tiling::block_rows: 64, or 32 with a head size above 64. 5 * B * NH * T^2 * HS FLOPs.
template <class W, int D, class Tiling, class T>
void attention_backward_one_tile(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                                 AttentionShape shape, stream_t stream) {
    launch(attention_backward_one_tile_kernel<W, D, T, Tiling>,
           attention_blocks<Tiling>(shape, shape.queries()), Tiling::block,
           4 * simt::shared_size<float>(Tiling::tile * D) + 2 * simt::shared_size<float>(Tiling::tile),
           stream, dqkv, dout, qkv, out, lse, shape, attention_scale(shape));
}
