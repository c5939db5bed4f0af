// attention_head.cuh: what the attention kernels share: where the matrices of a head lie, and which part
//   of the work a block has
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/common.cuh"

// One head's matrix in a packed tensor: row t begins at first + t * stride.
template <class T>
struct HeadRows {
    T* first;
    size_t stride;
    int count, columns;

    __device__ T* at(int row, int column) const { return first + row * stride + column; }
    __device__ float element(int row, int column) const {
        return row < count && column < columns ? static_cast<float>(*at(row, column)) : 0.0f;
    }
};

// The head of a block, and its tile of `rows` rows of that head. Consecutive blocks take the same tile of
// `group` heads, so that the tiles with the most work all come first; then follows the next group.
struct AttentionBlock {
    AttentionShape shape;
    int tiles;      // of a head
    unsigned head;  // 0 to B * NH - 1: of q
    int tile;

    // queries: heads of q that a block takes, of which `head` is the first: 1, or all that share k and v
    __device__ AttentionBlock(AttentionShape shape, int rows, int group, int queries = 1)
        : shape(shape), tiles(simt::ceil_div(shape.T, rows)) {
        const unsigned heads = static_cast<unsigned>(shape.B) * shape.NH / queries;
        const unsigned begin = blockIdx.x / (static_cast<unsigned>(tiles) * group) * group;
        const unsigned size = min(static_cast<unsigned>(group), heads - begin),
                       index = blockIdx.x - begin * tiles;
        head = (begin + index % size) * queries;
        tile = static_cast<int>(index / size);
    }
    // The same block, or its tile of a later head. Addresses that follow from it are computed where they are
    // used, instead of staying in registers through a loop.
    __device__ AttentionBlock computed_again(int later = 0) const {
        AttentionBlock block = *this;
        block.head = static_cast<unsigned>(simt::opaque(static_cast<int>(head)) + later);
        return block;
    }
    // offset of the head's lse and delta
    __device__ size_t statistics() const { return static_cast<size_t>(head) * shape.T; }

    // which: 0 for q, 1 for k, 2 for v
    template <class T>
    __device__ HeadRows<T> packed(T* qkv, int which) const {
        const size_t heads = shape.NH + 2 * shape.NKV, b = head / static_cast<unsigned>(shape.NH),
                     h = head % static_cast<unsigned>(shape.NH),
                     at = which == 0 ? h : shape.NH + (which - 1) * shape.NKV + h / shape.queries();
        return {qkv + (b * shape.T * heads + at) * shape.HS, heads * shape.HS, shape.T, shape.HS};
    }
    template <class T>
    __device__ HeadRows<T> plain(T* out) const {
        const size_t width = static_cast<size_t>(shape.NH) * shape.HS,
                     b = head / static_cast<unsigned>(shape.NH), h = head % static_cast<unsigned>(shape.NH);
        return {out + b * shape.T * width + h * shape.HS, width, shape.T, shape.HS};
    }
};

inline void check_attention(AttentionShape shape) {
    CHECK(shape.B > 0 && shape.T > 0 && shape.NH > 0,
          "attention: B = {}, T = {} and NH = {} must be positive", shape.B, shape.T, shape.NH);
    CHECK(shape.NKV > 0 && shape.NH % shape.NKV == 0,
          "attention: {} heads of keys and values do not divide the {} heads of queries", shape.NKV,
          shape.NH);
    CHECK(shape.HS > 0 && shape.HS <= 128, "attention: head size {} is not supported; expected 1 to 128",
          shape.HS);
}

// queries: heads of q that a block takes
template <class Tiling>
unsigned attention_blocks(AttentionShape shape, int queries = 1) {
    const size_t blocks =
        static_cast<size_t>(simt::ceil_div(shape.T, Tiling::block_rows)) * shape.B * shape.NH / queries;
    CHECK(blocks <= 0x7fffffff, "attention: B = {} times NH = {} is too large; use a smaller batch", shape.B,
          shape.NH);
    return static_cast<unsigned>(blocks);
}

// Calls body(std::integral_constant<int, D>) with the first D of an ascending list that is at least HS,
// or with the last D if none is.
template <int D, int... Larger, class Body>
void for_head_size(int HS, Body body) {
    if constexpr (sizeof...(Larger) > 0) {
        if (HS > D) return for_head_size<Larger...>(HS, body);
    }
    body(std::integral_constant<int, D>{});
}

inline float attention_scale(AttentionShape shape) { return 1.0f / std::sqrt(static_cast<float>(shape.HS)); }

// Bytes of scratch for attention_backward, which keeps delta there.
inline size_t attention_scratch_bytes(AttentionShape shape) {
    return sizeof(float) * shape.B * shape.NH * shape.T;
}
