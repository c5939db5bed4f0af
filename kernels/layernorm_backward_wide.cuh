// layernorm_backward_wide.cuh: layernorm's backward on a GPU
//   The kernel takes rows that are whole vectors and not too long.
//   A block is as wide as a row. A thread has the same channels of every row of its group, keeps their
//   weights and sums in registers, and loads the next row before it computes this one.
//   With C = 768 in bf16, 6 blocks of 3 warps on an SM have 27 KB in flight all the time; at least 17 KB
//   must be in flight (elementwise.cuh).
#pragma once
#include "kernels/common.cuh"
#include "kernels/layernorm_gradient.cuh"

constexpr int layernorm_channels = 8;     // channels of a row in one thread
constexpr int layernorm_max_block = 640;  // threads of a block

inline bool layernorm_is_wide(int C) {
    return C % layernorm_channels == 0 && C <= layernorm_max_block * layernorm_channels;
}
inline unsigned layernorm_wide_block(int C) {
    return ceil_div<unsigned>(static_cast<unsigned>(C), layernorm_channels * simt::warp_size) *
           simt::warp_size;
}

// Calls body(v, i) for this thread's vectors of a row: channels i to i + N - 1.
template <int N, class Body>
__device__ __forceinline__ void for_each_of_wide_row(int C, Body body) {
    UNROLL
    for (int v = 0; v < layernorm_channels / N; v++) {
        simt::one_at_a_time();
        const int i = static_cast<int>(threadIdx.x + v * blockDim.x) * N;
        if (i < C) body(v, i);
    }
}

// One thread's channels of a row, as backward reads them, with the row's statistics.
template <class T, int N, int Sums>
struct WideRow {
    static constexpr int vectors = layernorm_channels / N;
    Vec<T, N> dout[vectors], inp[vectors], dresidual[vectors];
    float mean, rstd;

    // The pointers are those of row 0; from_dresidual may be null.
    __device__ __forceinline__ void fetch(size_t row, int C, const T* from_dresidual, const T* from_dout,
                                          const T* from_inp, const float* means, const float* rstds) {
        for_each_of_wide_row<N>(C, [&](int v, int i) INLINE {
            const size_t at = row * C + i;
            dout[v] = load_raw<N>(from_dout + at), inp[v] = load_raw<N>(from_inp + at);
            if (simt::uniform_registers && from_dresidual)
                dresidual[v] = load_raw<N>(from_dresidual + at), stay_narrow(dresidual[v]);
            // nvcc would widen them at once, and so wait for the loads here
            stay_narrow(dout[v]), stay_narrow(inp[v]);
        });
        mean = Sums > 1 ? means[row] : 0.0f, rstd = rstds[row];
    }
};

// dinp = dresidual + gradient of inp;  partial (groups, Sums, C) = a group's sums of dout * norm, of dout
// and, if Sums is 3, of dinp. If Sums is 1, this is RMSNorm.
template <int N, class T, int Sums>
__global__ void __launch_bounds__(layernorm_max_block)
    layernorm_backward_wide_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout,
                                   const T* __restrict__ inp, const T* __restrict__ weight,
                                   const float* __restrict__ mean, const float* __restrict__ rstd,
                                   size_t rows, int C, size_t rows_per_group) {
    constexpr int vectors = layernorm_channels / N;
    const size_t begin = blockIdx.x * rows_per_group, end = min(rows, begin + rows_per_group);
    const float per_channel = 1.0f / static_cast<float>(C);
    Vec<T, N> weights[vectors] = {};
    Vec<float, N> sums[vectors][Sums];
    for_each_of_wide_row<N>(C, [&](int v, int i) INLINE {
        weights[v] = load_raw<N>(weight + i);
        UNROLL
        for (int n = 0; n < Sums; n++) sums[v][n] = simt::broadcast<N>(0.0f);
    });
    WideRow<T, N, Sums> next;
    next.fetch(begin, C, dresidual, dout, inp, mean, rstd);
    for (size_t row = begin; row < end; row++) {
        WideRow<T, N, Sums> now = next;
        if (row + 1 < end) next.fetch(row + 1, C, dresidual, dout, inp, mean, rstd);

        // Without uniform registers, holding it ahead would spill.
        if (!simt::uniform_registers && dresidual) {
            for_each_of_wide_row<N>(
                C, [&](int v, int i) INLINE { now.dresidual[v] = load_raw<N>(dresidual + row * C + i); });
        }
        // of dnorm * norm and of dnorm: sums over the row until they are divided by C below
        float averages[Sums > 1 ? 2 : 1] = {};
        for_each_of_wide_row<N>(C, [&](int v, int) INLINE {
            stay_narrow(now.dout[v]), stay_narrow(now.inp[v]), stay_narrow(weights[v]);
            const Vec<float, N> d = widen(now.dout[v]), x = widen(now.inp[v]), w = widen(weights[v]);
            UNROLL
            for (int k = 0; k < N; k++) {
                averages[0] += d[k] * w[k] * ((x[k] - now.mean) * now.rstd);
                if constexpr (Sums > 1) averages[1] += d[k] * w[k];
            }
        });
        simt::block_sums(averages);
        const LayerNormRow r{now.mean, now.rstd, Sums > 1 ? averages[Sums > 1] * per_channel : 0.0f,
                             averages[0] * per_channel};
        for_each_of_wide_row<N>(C, [&](int v, int i) INLINE {
            stay_narrow(now.dout[v]), stay_narrow(now.inp[v]);
            stay_narrow(now.dresidual[v]), stay_narrow(weights[v]);
            Vec<float, N> dx = dresidual ? widen(now.dresidual[v]) : simt::broadcast<N>(0.0f);
            layernorm_gradient(dx, sums[v], widen(now.dout[v]), widen(now.inp[v]), widen(weights[v]), r);
            store(dinp + row * C + i, dx);
        });
    }
    for_each_of_wide_row<N>(C, [&](int v, int i) INLINE {
        UNROLL
        for (int n = 0; n < Sums; n++)
            store(partial + (static_cast<size_t>(blockIdx.x) * Sums + n) * C + i, sums[v][n]);
    });
}
