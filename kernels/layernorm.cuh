// layernorm.cuh: out = norm * weight + bias, norm = (inp - mean) * rstd, over the last dimension
//   inp, out (N, C)   weight, bias (C)   mean, rstd (N) fp32, kept for backward
//   Backward, with dnorm = dout * weight and averages over a row:
//   dinp = (dnorm - average(dnorm) - norm * average(dnorm * norm)) * rstd,
//   dweight = sum over rows of dout * norm,   dbias = sum of dout
//   Where inp is a residual stream, the sum of dinp over rows is the gradient of the bias of the projection
//   last added to it: backward has it.
//   Ba et al. 2016, arXiv:1607.06450; eps = 1e-5 as in GPT-2
#pragma once
#include <algorithm>

#include "kernels/add_rows.cuh"
#include "kernels/common.cuh"

constexpr float layernorm_eps = 1e-5f;

// How a row is cut: W::threads share it, in vectors of N, of which each thread holds `Held` in registers
// between the passes over the row.
//   Held = 0: none, and the later passes read the row again from the cache. So do the CPU (it is in the
//   first-level cache), rows whose channels fill no vector, and rows too long for a block's registers.
//   A warp of the GPU asks for a whole row before it waits: 768 channels of bf16 are 1.5 KB of each input,
//   and 16 warps or more on an SM 48 KB of two inputs, 72 KB of three (backward). 17 KB must be on their way
//   at any time (elementwise.cuh).
template <class W_, int N_, int Held_>
struct RowCut {
    using W = W_;
    static constexpr int N = N_, held = Held_, registers = Held_ > 0 ? Held_ : 1;
};

// Calls body(RowCut) with the cut for rows of C channels. GPU: what is too long for a warp's registers goes
// to a block of 256 threads.
template <class W, class T, class Body>
void for_row_cut(int C, Body body) {
    simt::for_vector_length<W, T>(C, [&](auto n) {
        constexpr int N = n();
        if constexpr (W::threads > 1 && N > 1) {
            const int vectors = ceil_div(C, W::threads * N);
            if (vectors <= 4) return body(RowCut<W, N, 4>{});
            if (vectors <= 8) return body(RowCut<W, N, 8>{});
            if constexpr (W::threads == simt::warp_size) return for_row_cut<simt::GpuWidth<256>, T>(C, body);
        }
        body(RowCut<W, N, 0>{});
    });
}

// Calls body(i, v) for this thread's vectors of a row that ends at `end`: channels i to i + N - 1. Where
// vectors are held, v counts them.
template <class Cut, class Body>
__device__ __forceinline__ void for_each_of_row(int end, Body body) {
    constexpr int threads = Cut::W::threads, step = threads * Cut::N;
    const int begin = simt::row_lane<threads>() * Cut::N;
    if constexpr (Cut::held > 0) {
        UNROLL
        for (int v = 0; v < Cut::held; v++) {
            simt::one_at_a_time();
            if (begin + v * step < end) body(begin + v * step, v);
        }
    } else {
        for (int i = begin; i < end; i += step) body(i, 0);
    }
}

// With Residual the first pass also forms residual = inp + branch, and it is the residual that is normalised.
template <class Cut, class T, bool Residual>
__global__ void layernorm_forward_kernel(T* out, T* residual, float* mean, float* rstd, const T* inp,
                                         const T* branch, const T* weight, const T* bias, size_t rows,
                                         int C) {
    constexpr int threads = Cut::W::threads, N = Cut::N;
    const size_t row = simt::row_index<threads>(), first = row * C;
    // beyond the last row there is nothing to do, but the sums are met together
    const int end = row < rows ? C : 0;
    const T* again = (Residual ? residual : inp) + first;

    [[maybe_unused]] Vec<T, N> held[Cut::registers], held_branch[Residual ? Cut::registers : 1];
    if constexpr (Cut::held > 0) {
        for_each_of_row<Cut>(end, [&](int i, int v) INLINE {
            held[v] = load_raw<N>(inp + first + i);
            if constexpr (Residual) held_branch[v] = load_raw<N>(branch + first + i);
        });
    }
    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    for_each_of_row<Cut>(end, [&](int i, int v) INLINE {
        Vec<float, N> x = Cut::held > 0 ? widen(held[v]) : load<N>(inp + first + i);
        if constexpr (Residual) {
            const Vec<float, N> b = Cut::held > 0 ? widen(held_branch[v]) : load<N>(branch + first + i);
            UNROLL
            for (int k = 0; k < N; k++) x[k] += b[k];
            const Vec<T, N> rounded = narrow<T>(x);  // what later passes, and backward, will read
            store_raw(residual + first + i, rounded);
            if constexpr (Cut::held > 0) held[v] = rounded;
            x = widen(rounded);
        }
        UNROLL
        for (int k = 0; k < N; k++) sums[k] += x[k];
    });
    const auto vector = [&](int i, int v) INLINE {
        if constexpr (Cut::held > 0) {
            stay_narrow(held[v]);
            return widen(held[v]);
        } else {
            return load<N>(again + i);
        }
    };
    const float m = simt::row_sum<threads>(simt::sum(sums)) / static_cast<float>(C);
    Vec<float, N> squares = simt::broadcast<N>(0.0f);
    for_each_of_row<Cut>(end, [&](int i, int v) INLINE {
        const Vec<float, N> x = vector(i, v);
        UNROLL
        for (int k = 0; k < N; k++) squares[k] += (x[k] - m) * (x[k] - m);
    });
    const float s =
        simt::rsqrt(simt::row_sum<threads>(simt::sum(squares)) / static_cast<float>(C) + layernorm_eps);
    for_each_of_row<Cut>(end, [&](int i, int v) INLINE {
        const Vec<float, N> x = vector(i, v), w = load<N>(weight + i), b = load<N>(bias + i);
        Vec<float, N> o;
        UNROLL
        for (int k = 0; k < N; k++) o[k] = (x[k] - m) * s * w[k] + b[k];
        store(out + first + i, o);
    });
    if (row < rows && simt::row_lane<threads>() == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

// Reads N*C and writes N*C elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* inp, const T* weight, const T* bias,
                       size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    for_row_cut<W, T>(C, [&]<class Cut>(Cut) {
        launch_rows<Cut::W::threads>(layernorm_forward_kernel<Cut, T, false>, N, 0, stream, out, nullptr,
                                     mean, rstd, inp, nullptr, weight, bias, N, C);
    });
}

// residual = inp + branch, out = layernorm(residual); residual may be inp or branch. Reads 2 N*C and writes 2
// N*C elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void residual_layernorm_forward(T* out, T* residual, float* mean, float* rstd, const T* inp, const T* branch,
                                const T* weight, const T* bias, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    for_row_cut<W, T>(C, [&]<class Cut>(Cut) {
        launch_rows<Cut::W::threads>(layernorm_forward_kernel<Cut, T, true>, N, 0, stream, out, residual,
                                     mean, rstd, inp, branch, weight, bias, N, C);
    });
}

// Backward divides the rows into groups, one for each block. A block works through its group in order and
// leaves partial sums of dweight, dbias and dinp_sum, which add_rows adds up. A GPU runs all blocks at once:
// 20 warps fit on an SM, because __launch_bounds__ of 640 threads leaves a thread at most 96 registers. So
// the order of the additions depends on N, C and the number of SMs.
constexpr int layernorm_channels = 8;     // of a row that a thread has, where a block is as wide as a row
constexpr int layernorm_max_block = 640;  // threads of such a block
// rows computed together elsewhere: partial sums are read and written once for all of them
constexpr int layernorm_batch = 4;

// GPU: blocks are as wide as a row if rows are whole vectors and not too long.
inline bool layernorm_is_wide(int C) {
    return C % layernorm_channels == 0 && C <= layernorm_max_block * layernorm_channels;
}
inline unsigned layernorm_block(int C) {
    if (!layernorm_is_wide(C)) return 256;
    return ceil_div<unsigned>(static_cast<unsigned>(C), layernorm_channels * simt::warp_size) *
           simt::warp_size;
}
inline size_t layernorm_max_groups(int C) {
    return simt::multiprocessors() * std::max(1u, layernorm_max_block / layernorm_block(C));
}
inline size_t layernorm_rows_per_group(size_t N, int C) {
    const size_t batches = ceil_div<size_t>(N, layernorm_max_groups(C) * layernorm_batch);
    return std::max<size_t>(4, batches) * layernorm_batch;
}
inline size_t layernorm_groups(size_t N, int C) { return ceil_div(N, layernorm_rows_per_group(N, C)); }

// Floats of scratch that layernorm_backward needs for up to N rows. Fewer rows can need more groups, so it is
// the most that any of them needs.
inline size_t layernorm_backward_scratch(size_t N, int C) {
    return std::min<size_t>(ceil_div<size_t>(N, 4 * layernorm_batch), layernorm_max_groups(C)) * 3 *
           static_cast<size_t>(C);
}

// A thread's channels of one row: what backward reads of it.
template <class T, int N, int Vectors>
struct LayerNormInputs {
    Vec<T, N> dout[Vectors], inp[Vectors], dresidual[Vectors];
    float mean, rstd;
};

// dinp = dresidual + gradient of inp;  partial (groups, Sums, C) = a group's sums of dout * norm, of dout
// and, where Sums is 3, of dinp. A block is as wide as a row. A thread has the same channels of every row,
// keeps their weights and sums in registers, and loads the next row before it computes this one.
//   C = 768, bf16: 6 blocks of 3 warps on an SM have 27 KiB in flight all the time; 17 KiB must be
//   (elementwise.cuh).
template <int N, class T, int Sums>
__global__ void __launch_bounds__(layernorm_max_block)
    layernorm_backward_wide_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout,
                                   const T* __restrict__ inp, const T* __restrict__ weight,
                                   const float* __restrict__ mean, const float* __restrict__ rstd,
                                   size_t rows, int C, size_t rows_per_group) {
    constexpr int vectors = layernorm_channels / N;
    using Inputs = LayerNormInputs<T, N, vectors>;
    const size_t begin = blockIdx.x * rows_per_group, end = min(rows, begin + rows_per_group);
    const float per_channel = 1.0f / static_cast<float>(C);
    // Calls body(v, i) for this thread's vectors: channels i to i + N - 1.
    const auto for_each = [&](auto body) INLINE {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            simt::one_at_a_time();
            const int i = static_cast<int>(threadIdx.x + v * blockDim.x) * N;
            if (i < C) body(v, i);
        }
    };
    const auto fetch = [&](Inputs& to, size_t row) INLINE {
        for_each([&](int v, int i) INLINE {
            const size_t at = row * C + i;
            to.dout[v] = load_raw<N>(dout + at), to.inp[v] = load_raw<N>(inp + at);
            if (dresidual) to.dresidual[v] = load_raw<N>(dresidual + at), stay_narrow(to.dresidual[v]);
            // nvcc would take them apart, and wait for them to do so
            stay_narrow(to.dout[v]), stay_narrow(to.inp[v]);
        });
        to.mean = mean[row], to.rstd = rstd[row];
    };

    Vec<T, N> weights[vectors] = {};
    Vec<float, N> sums[Sums][vectors];
    for_each([&](int v, int i) INLINE {
        weights[v] = load_raw<N>(weight + i);
        UNROLL
        for (int n = 0; n < Sums; n++) sums[n][v] = simt::broadcast<N>(0.0f);
    });
    Inputs next;
    fetch(next, begin);
    for (size_t row = begin; row < end; row++) {
        Inputs now = next;
        if (row + 1 < end) fetch(next, row + 1);

        float averages[2] = {0.0f, 0.0f};  // of dnorm and of dnorm * norm
        for_each([&](int v, int) INLINE {
            stay_narrow(now.dout[v]), stay_narrow(now.inp[v]), stay_narrow(weights[v]);
            const Vec<float, N> d = widen(now.dout[v]), x = widen(now.inp[v]), w = widen(weights[v]);
            UNROLL
            for (int k = 0; k < N; k++) {
                averages[0] += d[k] * w[k];
                averages[1] += d[k] * w[k] * ((x[k] - now.mean) * now.rstd);
            }
        });
        simt::block_sums(averages);
        const float average = averages[0] * per_channel, average_norm = averages[1] * per_channel;
        for_each([&](int v, int i) INLINE {
            stay_narrow(now.dout[v]), stay_narrow(now.inp[v]), stay_narrow(now.dresidual[v]),
                stay_narrow(weights[v]);
            const Vec<float, N> d = widen(now.dout[v]), x = widen(now.inp[v]), w = widen(weights[v]);
            Vec<float, N> dx = dresidual ? widen(now.dresidual[v]) : simt::broadcast<N>(0.0f);
            UNROLL
            for (int k = 0; k < N; k++) {
                const float norm = (x[k] - now.mean) * now.rstd;
                sums[0][v][k] += d[k] * norm;
                sums[1][v][k] += d[k];
                dx[k] += (d[k] * w[k] - average - norm * average_norm) * now.rstd;
                if constexpr (Sums > 2) sums[2][v][k] += dx[k];
            }
            store(dinp + row * C + i, dx);
        });
    }
    for_each([&](int v, int i) INLINE {
        UNROLL
        for (int n = 0; n < Sums; n++)
            store(partial + (static_cast<size_t>(blockIdx.x) * Sums + n) * C + i, sums[n][v]);
    });
}

// The same, where W::threads share a row and read it twice, the second time from the cache. The CPU does so,
// and a GPU where rows are not whole vectors or too long.
template <class W, int N, class T, int Sums>
__global__ void __launch_bounds__(simt::block_of<W>, 1)
    layernorm_backward_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout,
                              const T* __restrict__ inp, const T* __restrict__ weight,
                              const float* __restrict__ mean, const float* __restrict__ rstd, size_t rows,
                              int C, size_t rows_per_group) {
    constexpr int threads = W::threads, R = layernorm_batch;
    using Cut = RowCut<W, N, 0>;
    const size_t group_begin = blockIdx.x * rows_per_group,
                 group_end = min(rows, group_begin + rows_per_group);
    float* const sums = partial + static_cast<size_t>(blockIdx.x) * Sums * C;

    for (size_t first = group_begin; first < group_end; first += R) {
        const int count = group_end - first < R ? static_cast<int>(group_end - first) : R;
        float m[R], s[R], average[R], average_norm[R];  // of dnorm and of dnorm * norm
        UNROLL
        for (int r = 0; r < R; r++) {
            if (r >= count) continue;
            const size_t row = first + r;
            m[r] = mean[row], s[r] = rstd[row];
            Vec<float, N> dnorms = simt::broadcast<N>(0.0f), norm_sums = dnorms;
            for_each_of_row<Cut>(C, [&](int i, int) INLINE {
                const size_t at = row * C + i;
                const Vec<float, N> d = load<N>(dout + at), x = load<N>(inp + at), w = load<N>(weight + i);
                UNROLL
                for (int k = 0; k < N; k++) {
                    dnorms[k] += d[k] * w[k];
                    norm_sums[k] += d[k] * w[k] * ((x[k] - m[r]) * s[r]);
                }
            });
            average[r] = simt::row_sum<threads>(simt::sum(dnorms)) / static_cast<float>(C);
            average_norm[r] = simt::row_sum<threads>(simt::sum(norm_sums)) / static_cast<float>(C);
        }
        for_each_of_row<Cut>(C, [&](int i, int) INLINE {
            const Vec<float, N> w = load<N>(weight + i);
            Vec<float, N> sum[Sums];
            UNROLL
            for (int n = 0; n < Sums; n++)
                sum[n] = first == group_begin ? simt::broadcast<N>(0.0f) : load<N>(sums + n * C + i);
            UNROLL
            for (int r = 0; r < R; r++) {
                if (r >= count) continue;
                const size_t at = (first + r) * C + i;
                const Vec<float, N> d = load<N>(dout + at), x = load<N>(inp + at);
                Vec<float, N> dx = dresidual ? load<N>(dresidual + at) : simt::broadcast<N>(0.0f);
                UNROLL
                for (int k = 0; k < N; k++) {
                    const float norm = (x[k] - m[r]) * s[r];
                    sum[0][k] += d[k] * norm;
                    sum[1][k] += d[k];
                    dx[k] += (d[k] * w[k] - average[r] - norm * average_norm[r]) * s[r];
                    if constexpr (Sums > 2) sum[2][k] += dx[k];
                }
                store(dinp + at, dx);
            }
            UNROLL
            for (int n = 0; n < Sums; n++) store(sums + n * C + i, sum[n]);
        });
    }
}

// dinp (N, C) = dresidual + gradient of inp, where dresidual may be nullptr (none) or dinp itself;  dweight
// (C), dbias (C) +=, and dinp_sum (C) += the sum of dinp over its rows, before it is rounded to T, unless it
// is nullptr. Reads 2 N*C (3 with dresidual) and writes N*C elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void layernorm_backward(T* dinp, float* dweight, float* dbias, float* dinp_sum, float* scratch,
                        const T* dresidual, const T* dout, const T* inp, const T* weight, const float* mean,
                        const float* rstd, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    const size_t groups = layernorm_groups(N, C);
    const auto start = [&](auto kernel, unsigned block) {
        launch(kernel, static_cast<unsigned>(groups), block, 0, stream, dinp, scratch, dresidual, dout, inp,
               weight, mean, rstd, N, C, layernorm_rows_per_group(N, C));
    };
    const auto start_with = [&]<int Sums>(std::integral_constant<int, Sums>) {
        simt::for_vector_length<W, T>(C, [&](auto n) {
            if constexpr (W::threads > 1 && n() > 1) {
                if (layernorm_is_wide(C))
                    return start(layernorm_backward_wide_kernel<n(), T, Sums>, layernorm_block(C));
            }
            using Shared = std::conditional_t<W::threads == 1, W, simt::GpuWidth<256>>;
            start(layernorm_backward_kernel<Shared, n(), T, Sums>, Shared::threads);
        });
    };
    if (dinp_sum) start_with(std::integral_constant<int, 3>{});
    else start_with(std::integral_constant<int, 2>{});
    add_rows<W>({dweight, dbias, dinp_sum}, scratch, groups, C, stream);
}
