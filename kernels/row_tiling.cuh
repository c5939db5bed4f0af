// row_tiling.cuh: how the threads that share a row divide it, for kernels that pass over a row several times.
//   for_row_tiling chooses a RowTiling for the length of the rows, for_each_of_row visits a thread's vectors,
//   and HeldRow keeps them in registers between the passes.
#pragma once
#include "kernels/common.cuh"

// W::threads share a row in vectors of N elements. Each thread keeps up to `held` of its vectors in registers
// between the passes.
//   held = 0: every pass reads the row again, from the cache. This is right for the CPU, whose first-level
//   cache has the row, and for rows that are not whole vectors or too long for a block's registers.
//   A warp of the GPU issues the loads of a whole row before it waits: 768 channels of bf16 are 1.5 KB of
//   each input, so 16 warps on an SM have 24 KB in flight with one input, and 48 KB with the two of
//   residual_layernorm_forward. At least 17 KB must be in flight (elementwise.cuh).
template <class W_, int N_, int Held_>
struct RowTiling {
    using W = W_;
    static constexpr int N = N_, held = Held_, registers = Held_ > 0 ? Held_ : 1;
};

// Calls body(RowTiling) with the tiling for rows of C channels. On a GPU a row that is too long for the
// registers of a warp gets a block of 256 threads.
template <class W, class T, class Body>
void for_row_tiling(int C, Body body) {
    simt::for_vector_length<W, T>(C, [&](auto n) {
        constexpr int N = n();
        if constexpr (W::threads > 1 && N > 1) {
            const int vectors = ceil_div(C, W::threads * N);
            if (vectors <= 4) return body(RowTiling<W, N, 4>{});
            if (vectors <= 8) return body(RowTiling<W, N, 8>{});
            if constexpr (W::threads == simt::warp_size)
                return for_row_tiling<simt::GpuWidth<256>, T>(C, body);
        }
        body(RowTiling<W, N, 0>{});
    });
}

// Calls body(i, v) for this thread's vectors of a row that ends at `end`: channels i to i + N - 1. Where
// vectors are held, v counts them.
template <class Tiling, class Body>
__device__ __forceinline__ void for_each_of_row(int end, Body body) {
    constexpr int threads = Tiling::W::threads, step = threads * Tiling::N;
    const int begin = simt::row_lane<threads>() * Tiling::N;
    if constexpr (Tiling::held > 0) {
        UNROLL
        for (int v = 0; v < Tiling::held; v++) {
            simt::one_at_a_time();
            if (begin + v * step < end) body(begin + v * step, v);
        }
    } else {
        for (int i = begin; i < end; i += step) body(i, 0);
    }
}

// This thread's vectors of one row: in registers after fetch(), or read from memory at every use.
template <class Tiling, class T>
struct HeldRow {
    static constexpr int N = Tiling::N;
    const T* memory;  // the row's first channel
    Vec<T, N> vectors[Tiling::registers];

    __device__ __forceinline__ explicit HeldRow(const T* row) : memory(row) {}
    __device__ __forceinline__ void fetch(int i, int v) {
        if constexpr (Tiling::held > 0) vectors[v] = load_raw<N>(memory + i);
    }
    __device__ __forceinline__ Vec<float, N> get(int i, int v) const {
        if constexpr (Tiling::held > 0) return widen(vectors[v]);
        else return load<N>(memory + i);
    }
    // As get(), in a pass after the first: between the passes the registers keep the narrow form.
    __device__ __forceinline__ Vec<float, N> get_again(int i, int v) {
        if constexpr (Tiling::held > 0) stay_narrow(vectors[v]);
        return get(i, v);
    }
    // Replaces a vector, in memory at `row` and in the registers.
    __device__ __forceinline__ void put(T* row, int i, int v, const Vec<T, N>& value) {
        store_raw(row + i, value);
        if constexpr (Tiling::held > 0) vectors[v] = value;
    }
};
