// decode_cache.h: the memory layout of the keys and values of all tokens so far (decode_attention.cuh
//   gives the reasons)
#pragma once
#include <cstddef>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/host_device.h"

// Tokens that one CUDA graph of generation serves; on a CPU also those of a chunk (decode_attention.cuh).
constexpr int decode_chunk = 256;

// The cache of one layer.
template <class T>
struct DecodeCache {
    static constexpr int tile = 64 / sizeof(T);  // tokens
    T *keys, *values;
    int samples, NH, HS, max_tokens;
    int NKV = NH;  // heads of keys and values; divides NH

    static HOST_DEVICE int padded_head(int HS) { return (HS + 31) / 32 * 32; }
    HOST_DEVICE int D() const { return padded_head(HS); }
    // Elements of keys, and of values, of one head of one sample.
    HOST_DEVICE size_t head_elements() const {
        return static_cast<size_t>((max_tokens + tile - 1) / tile) * tile * D();
    }
    HOST_DEVICE size_t elements() const { return static_cast<size_t>(samples) * NKV * head_elements(); }
};
