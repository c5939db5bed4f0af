// attention.cuh: causal self-attention that never holds a (T, T) matrix, forward and backward
//   forward:  S = Q K^T / sqrt(HS), key <= query;  P = softmax(S) over the keys;  O = P V;
//             lse = log of each row's sum of exp(S)
//   backward: dV = P^T dO;  dP = dO V^T;  dS = P * (dP - delta), delta = rowsum(dO * O);
//             dQ = dS K / sqrt(HS);  dK = dS^T Q / sqrt(HS)
//   qkv, dqkv (B, T, NH + 2 NKV, HS)   out, dout (B, T, NH, HS)   lse, delta (B, NH, T) fp32
//   Dao 2023, arXiv:2307.08691 (flash attention 2)
//   Milakov and Gimelshein 2018, arXiv:1805.02867 (the softmax while the keys pass by)
//   attention_tiles.cuh explains how threads own rows and tiles pass by. attention_mma.cuh is the form for
//   tensor cores, attention_one_tile.cuh that for short sequences on a CPU.
#pragma once
#include "kernels/attention/attention_head.cuh"
#include "kernels/attention/attention_mma.cuh"
#include "kernels/attention/attention_one_tile.cuh"
#include "kernels/attention/attention_tiles.cuh"

// In the three kernels below a lane owns 2 (forward), 3 (dQ) and 4 (dK, dV) matrices of rows * 16 floats.
// `rows` is the largest number that 255 registers hold without spills.
template <class W, int D>
using AttentionForwardTiling = AttentionTiling<W, D, 4, 4>;
template <class W, int D>
using AttentionBackwardQTiling = AttentionTiling<W, D, 2, 4>;
template <class W, int D>
using AttentionBackwardKVTiling = AttentionTiling<W, D, 2, 2>;

// The softmax of a strip's rows over the keys, updated as the keys pass by.
template <class Tiling>
struct RowsSoftmax {
    using Rows = typename Tiling::Rows;
    Rows maximum = simt::broadcast<Tiling::rows>(-INFINITY), sum = simt::broadcast<Tiling::rows>(0.0f);

    // p holds the scores of `count` keys and becomes exp(score - maximum). out, the sum of weighted values so
    // far, is rescaled to the new maximum. distance is the first key minus the first row; row n sees the keys
    // up to its own position.
    __device__ __forceinline__ void add(Rows (&p)[Tiling::step], Rows (&out)[Tiling::columns], int count,
                                        int distance) {
        Rows next = maximum;
        UNROLL
        for (int r = 0; r < count; r++) {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) {
                p[r][n] = distance + r <= n ? p[r][n] : -INFINITY;
                next[n] = p[r][n] > next[n] ? p[r][n] : next[n];
            }
        }
        Rows shrink, sums;
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) {
            shrink[n] = simt::exp(maximum[n] - next[n]);
            sums[n] = sum[n] * shrink[n];
        }
        UNROLL
        for (int r = 0; r < count; r++) {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) {
                p[r][n] = simt::exp(p[r][n] - next[n]);
                sums[n] += p[r][n];
            }
        }
        UNROLL
        for (int c = 0; c < Tiling::columns; c++) {
            UNROLL
            for (int n = 0; n < Tiling::rows; n++) out[c][n] *= shrink[n];
        }
        maximum = next;
        sum = sums;
    }
    __device__ __forceinline__ Rows reciprocal() const {
        Rows r;
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) r[n] = 1.0f / sum[n];
        return r;
    }
    __device__ __forceinline__ float lse(int n) const { return maximum[n] + simt::log(sum[n]); }
};

// The owned rows are queries; keys and values pass by.
template <class W, int D, class T, class Tiling = AttentionForwardTiling<W, D>>
__global__ void __launch_bounds__(Tiling::block, 2)
    attention_forward_kernel(T* out, float* lse, const T* qkv, AttentionShape shape, float scale) {
    using Rows = typename Tiling::Rows;
    if (Tiling::one_thread && threadIdx.x > 0) return;  // in this case there is no barrier below
    simt::SharedMemory shared;
    float* k_tile = shared.take<float>(Tiling::tile * D);
    float* v_tile = shared.take<float>(Tiling::tile * D);

    const AttentionBlock block(shape, Tiling::block_rows, shape.B * shape.NH);
    // the last queries see the most keys, so their blocks start first
    const AttentionThread<Tiling> thread((block.tiles - 1 - block.tile) * Tiling::block_rows);
    const auto q = block.packed(qkv, 0), k = block.packed(qkv, 1), v = block.packed(qkv, 2);

    Rows own_q[Tiling::strips][Tiling::columns], own_out[Tiling::strips][Tiling::columns];
    RowsSoftmax<Tiling> softmax[Tiling::strips];
    UNROLL
    for (int s = 0; s < Tiling::strips; s++) {
        load_own<Tiling>(own_q[s], q, scale, thread.row(s), thread.lane);
        set_zero(own_out[s]);
    }

    const auto load = [&](int j) INLINE { load_tile<Tiling>(k_tile, k, j), load_tile<Tiling>(v_tile, v, j); };
    const auto range = [&](int s, int k0) INLINE { return thread.keys_seen(s, k0, shape.T); };
    const auto step = [&](int s, int k0, int r0, int count) INLINE {
        Rows p[Tiling::step];
        dot_products<Tiling>(p, k_tile + r0 * D, own_q[s], count, thread.lane);
        softmax[s].add(p, own_out[s], count, k0 + r0 - thread.row(s));
        accumulate<Tiling>(own_out[s], v_tile + r0 * D, p, count, thread.lane);
    };
    for_each_step<Tiling>(0, min(thread.first + Tiling::block_rows, shape.T), load, range, step);

    UNROLL
    for (int s = 0; s < Tiling::strips; s++) {
        store_own<Tiling>(block.plain(out), own_out[s], softmax[s].reciprocal(), thread.row(s), thread.lane);
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) {
            const int row = thread.row(s) + n;
            if (thread.lane == 0 && row < shape.T) lse[block.statistics() + row] = softmax[s].lse(n);
        }
    }
}

// dots[n] = sum over c of a[c][n] * b[c][n]
template <class Tiling>
__device__ __forceinline__ typename Tiling::Rows row_dots(const typename Tiling::Rows (&a)[Tiling::columns],
                                                          const typename Tiling::Rows (&b)[Tiling::columns]) {
    typename Tiling::Rows dots = simt::broadcast<Tiling::rows>(0.0f);
    UNROLL
    for (int c = 0; c < Tiling::columns; c++) {
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) dots[n] += a[c][n] * b[c][n];
    }
    if constexpr (Tiling::lanes > 1) {
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) dots[n] = simt::row_sum<Tiling::lanes>(dots[n]);
    }
    return dots;
}

// ds holds dP of `count` keys and becomes dS = P * (dP - delta) with P = exp(scores - lse). distance is the
// first key minus the first row.
template <class Tiling>
__device__ __forceinline__ void score_gradients(typename Tiling::Rows (&ds)[Tiling::step],
                                                const typename Tiling::Rows (&scores)[Tiling::step],
                                                const typename Tiling::Rows& lse,
                                                const typename Tiling::Rows& delta, int count, int distance) {
    UNROLL
    for (int r = 0; r < count; r++) {
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) {
            const float p = simt::exp(scores[r][n] - lse[n]);
            ds[r][n] = distance + r <= n ? p * (ds[r][n] - delta[n]) : 0.0f;
        }
    }
}

// The owned rows are queries; keys and values pass by. Stores delta for the kernel below.
template <class W, int D, class T, class Tiling = AttentionBackwardQTiling<W, D>>
__global__ void __launch_bounds__(Tiling::block, 2)
    attention_backward_q_kernel(T* dqkv, float* delta, const T* dout, const T* qkv, const T* out,
                                const float* lse, AttentionShape shape, float scale) {
    using Rows = typename Tiling::Rows;
    if (Tiling::one_thread && threadIdx.x > 0) return;  // in this case there is no barrier below
    simt::SharedMemory shared;
    float* k_tile = shared.take<float>(Tiling::tile * D);
    float* v_tile = shared.take<float>(Tiling::tile * D);

    const AttentionBlock block(shape, Tiling::block_rows, shape.B * shape.NH);
    // the last queries see the most keys, so their blocks start first
    const AttentionThread<Tiling> thread((block.tiles - 1 - block.tile) * Tiling::block_rows);
    const auto q = block.packed(qkv, 0), k = block.packed(qkv, 1), v = block.packed(qkv, 2);

    Rows own_q[Tiling::strips][Tiling::columns], own_dout[Tiling::strips][Tiling::columns],
        own_dq[Tiling::strips][Tiling::columns], own_lse[Tiling::strips], own_delta[Tiling::strips];
    UNROLL
    for (int s = 0; s < Tiling::strips; s++) {
        // own_q holds out until delta is computed
        load_own<Tiling>(own_q[s], block.plain(out), 1.0f, thread.row(s), thread.lane);
        load_own<Tiling>(own_dout[s], block.plain(dout), 1.0f, thread.row(s), thread.lane);
        own_delta[s] = row_dots<Tiling>(own_q[s], own_dout[s]);
        UNROLL
        for (int n = 0; n < Tiling::rows; n++) {
            const int row = thread.row(s) + n;
            if (thread.lane == 0 && row < shape.T) delta[block.statistics() + row] = own_delta[s][n];
            own_lse[s][n] = row < shape.T ? lse[block.statistics() + row] : INFINITY;
        }
        load_own<Tiling>(own_q[s], q, scale, thread.row(s), thread.lane);
        set_zero(own_dq[s]);
    }

    const auto load = [&](int j) INLINE { load_tile<Tiling>(k_tile, k, j), load_tile<Tiling>(v_tile, v, j); };
    const auto range = [&](int s, int k0) INLINE { return thread.keys_seen(s, k0, shape.T); };
    const auto step = [&](int s, int k0, int r0, int count) INLINE {
        Rows scores[Tiling::step], ds[Tiling::step];
        dot_products<Tiling>(scores, k_tile + r0 * D, own_q[s], count, thread.lane);
        dot_products<Tiling>(ds, v_tile + r0 * D, own_dout[s], count, thread.lane);
        score_gradients<Tiling>(ds, scores, own_lse[s], own_delta[s], count, k0 + r0 - thread.row(s));
        accumulate<Tiling>(own_dq[s], k_tile + r0 * D, ds, count, thread.lane);
    };
    for_each_step<Tiling>(0, min(thread.first + Tiling::block_rows, shape.T), load, range, step);
    UNROLL
    for (int s = 0; s < Tiling::strips; s++) {
        store_own<Tiling>(block.packed(dqkv, 0), own_dq[s], simt::broadcast<Tiling::rows>(scale),
                          thread.row(s), thread.lane);
    }
}

// The owned rows are keys; queries and their gradients pass by, head after head, from the first owned key on.
template <class W, int D, class T, class Tiling = AttentionBackwardKVTiling<W, D>>
__global__ void __launch_bounds__(Tiling::block, 2)
    attention_backward_kv_kernel(T* dqkv, const T* dout, const T* qkv, const float* lse, const float* delta,
                                 AttentionShape shape, float scale) {
    using Rows = typename Tiling::Rows;
    if (Tiling::one_thread && threadIdx.x > 0) return;  // in this case there is no barrier below
    simt::SharedMemory shared;
    float *q_tile = shared.take<float>(Tiling::tile * D), *dout_tile = shared.take<float>(Tiling::tile * D);
    float *lse_tile = shared.take<float>(Tiling::tile), *delta_tile = shared.take<float>(Tiling::tile);

    const AttentionBlock block(shape, Tiling::block_rows, shape.B * shape.NKV, shape.queries());
    // the first keys are seen by the most queries, so their blocks start first
    const AttentionThread<Tiling> thread(block.tile * Tiling::block_rows);
    int later = 0;  // the head of q that passes by, after the block's

    Rows own_k[Tiling::strips][Tiling::columns], own_v[Tiling::strips][Tiling::columns],
        own_dk[Tiling::strips][Tiling::columns], own_dv[Tiling::strips][Tiling::columns];
    UNROLL
    for (int s = 0; s < Tiling::strips; s++) {
        load_own<Tiling>(own_k[s], block.packed(qkv, 1), scale, thread.row(s), thread.lane);
        load_own<Tiling>(own_v[s], block.packed(qkv, 2), 1.0f, thread.row(s), thread.lane);
        set_zero(own_dk[s]);
        set_zero(own_dv[s]);
    }

    const auto load = [&](int q0) INLINE {
        const AttentionBlock passing = block.computed_again(later);
        load_tile<Tiling>(q_tile, passing.packed(qkv, 0), q0);
        load_tile<Tiling>(dout_tile, passing.plain(dout), q0);
        load_numbers<Tiling>(lse_tile, lse + passing.statistics(), q0, shape.T, INFINITY);  // p = 0
        load_numbers<Tiling>(delta_tile, delta + passing.statistics(), q0, shape.T, 0.0f);
    };
    const auto range = [&](int s, int q0) INLINE { return thread.queries_seeing(s, q0, shape.T); };
    const auto step = [&](int s, int q0, int r0, int count) INLINE {
        Rows p[Tiling::step], ds[Tiling::step];
        dot_products<Tiling>(p, q_tile + r0 * D, own_k[s], count, thread.lane);
        dot_products<Tiling>(ds, dout_tile + r0 * D, own_v[s], count, thread.lane);
        weights_and_gradients<Tiling>(p, ds, lse_tile + r0, delta_tile + r0, count, q0 + r0 - thread.row(s));
        accumulate<Tiling>(own_dv[s], dout_tile + r0 * D, p, count, thread.lane);
        accumulate<Tiling>(own_dk[s], q_tile + r0 * D, ds, count, thread.lane);
    };
    for (; later < shape.queries(); later++) for_each_step<Tiling>(thread.first, shape.T, load, range, step);
    UNROLL
    for (int s = 0; s < Tiling::strips; s++) {
        store_own<Tiling>(block.packed(dqkv, 1), own_dk[s], simt::broadcast<Tiling::rows>(scale),
                          thread.row(s), thread.lane);
        store_own<Tiling>(block.packed(dqkv, 2), own_dv[s], simt::broadcast<Tiling::rows>(1.0f),
                          thread.row(s), thread.lane);
    }
}

// 2 matrix products, half of each because of causality: 2 * B * NH * T^2 * HS FLOPs; bound by arithmetic.
template <class W = simt::NativeWidth<32>, class T>
void attention_forward(T* out, float* lse, const T* qkv, AttentionShape shape, stream_t stream) {
    check_attention(shape);
    if constexpr (attention_mma_multiplies<W, T>) {
        if (attention_mma_takes(shape)) return attention_mma_forward(out, lse, qkv, shape, stream);
    }
    for_head_size<32, 64, 128>(shape.HS, [&](auto D) {
        using Tiling = AttentionForwardTiling<W, D()>;
        launch(attention_forward_kernel<W, D(), T>, attention_blocks<Tiling>(shape), Tiling::block,
               2 * simt::shared_size<float>(Tiling::tile * D()), stream, out, lse, qkv, shape,
               attention_scale(shape));
    });
}

// dqkv = the gradient of qkv. scratch: attention_scratch_bytes.
// 7 matrix products, half of each: 7 * B * NH * T^2 * HS FLOPs; bound by arithmetic. S and dP are computed
// twice, so that no sum is shared between blocks; once where attention_one_tile.cuh takes the shape.
template <class W = simt::NativeWidth<32>, class T>
void attention_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, float* scratch,
                        AttentionShape shape, stream_t stream) {
    check_attention(shape);
    if constexpr (attention_mma_multiplies<W, T>) {
        if (attention_mma_takes(shape))
            return attention_mma_backward(dqkv, dout, qkv, out, lse, scratch, shape, stream);
    }
    for_head_size<32, 64, 128>(shape.HS, [&](auto D) {
        using Tiling = AttentionBackwardKVTiling<W, D()>;
        if constexpr (Tiling::one_thread) {
            if (shape.T <= Tiling::block_rows)
                return attention_backward_one_tile<W, D(), Tiling>(dqkv, dout, qkv, out, lse, shape, stream);
        }
        const size_t tiles_bytes = 2 * simt::shared_size<float>(Tiling::tile * D());
        launch(attention_backward_q_kernel<W, D(), T>, attention_blocks<Tiling>(shape), Tiling::block,
               tiles_bytes, stream, dqkv, scratch, dout, qkv, out, lse, shape, attention_scale(shape));
        launch(attention_backward_kv_kernel<W, D(), T>, attention_blocks<Tiling>(shape, shape.queries()),
               Tiling::block, tiles_bytes + 2 * simt::shared_size<float>(Tiling::tile), stream, dqkv, dout,
               qkv, lse, scratch, shape, attention_scale(shape));
    });
}

// Compiled once, in attention_kernel.cu.
extern template void attention_forward(float*, float*, const float*, AttentionShape, stream_t);
extern template void attention_forward(bfloat16*, float*, const bfloat16*, AttentionShape, stream_t);
extern template void attention_backward(float*, const float*, const float*, const float*, const float*,
                                        float*, AttentionShape, stream_t);
extern template void attention_backward(bfloat16*, const bfloat16*, const bfloat16*, const bfloat16*,
                                        const float*, float*, AttentionShape, stream_t);
