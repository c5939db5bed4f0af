// layernorm.cuh: out = norm * weight + bias, norm = (inp - mean) * rstd, over the last dimension
//   inp, out (N, C)   weight, bias (C)   mean, rstd (N) fp32, kept for backward
//   Backward, with dnorm = dout * weight and averages over a row:
//     dinp = (dnorm - average(dnorm) - norm * average(dnorm * norm)) * rstd
//     dweight = sum over rows of dout * norm,   dbias = sum over rows of dout
//   Where inp is a residual stream, the sum of dinp over rows is also the bias gradient of the projection
//   that was last added to the stream, and backward computes it too.
//   Ba et al. 2016, arXiv:1607.06450
//   Without a bias this is RMSNorm: mean and average(dnorm) are 0, and rstd = 1 / sqrt(average(inp^2) + eps).
//   Zhang and Sennrich 2019, arXiv:1910.07467
#pragma once
#include <algorithm>

#include "kernels/add_rows.cuh"
#include "kernels/common.cuh"
#include "kernels/layernorm_backward_wide.cuh"
#include "kernels/layernorm_gradient.cuh"
#include "kernels/row_tiling.cuh"

// Reads a row into x and returns the sum of this thread's channels, or of their squares if it is not Centred.
// With Residual the row is residual = inp + branch, rounded to T as later passes and backward will read it.
template <bool Residual, bool Centred, class Tiling, class T>
__device__ __forceinline__ float read_row(HeldRow<Tiling, T>& x, const T* branch, T* residual, int end) {
    constexpr int N = Tiling::N;
    [[maybe_unused]] HeldRow<Tiling, T> b(branch);
    for_each_of_row<Tiling>(end, [&](int i, int v) INLINE {
        x.fetch(i, v);
        if constexpr (Residual) b.fetch(i, v);
    });
    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    for_each_of_row<Tiling>(end, [&](int i, int v) INLINE {
        Vec<float, N> value = x.get(i, v);
        if constexpr (Residual) {
            const Vec<float, N> added = b.get(i, v);
            UNROLL
            for (int k = 0; k < N; k++) value[k] += added[k];
            const Vec<T, N> rounded = narrow<T>(value);
            x.put(residual, i, v, rounded);
            value = widen(rounded);
        }
        UNROLL
        for (int k = 0; k < N; k++) sums[k] += Centred ? value[k] : value[k] * value[k];
    });
    if constexpr (Residual) x.memory = residual;
    return simt::sum(sums);
}

// Tiling::W::threads threads share a row.
template <class Tiling, class T, bool Residual, bool Centred>
__global__ void layernorm_forward_kernel(T* out, T* residual, float* mean, float* rstd, const T* inp,
                                         const T* branch, const T* weight, const T* bias, float eps,
                                         size_t rows, int C) {
    constexpr int threads = Tiling::W::threads, N = Tiling::N;
    const size_t row = simt::row_index<threads>(), first = row * C;
    // A row past the last one has no channels, but its threads take part in the collectives.
    const int end = row < rows ? C : 0;
    HeldRow<Tiling, T> x(inp + first);
    const float sum = read_row<Residual, Centred>(x, Residual ? branch + first : nullptr,
                                                  Residual ? residual + first : nullptr, end);
    const float average = simt::row_sum<threads>(sum) / static_cast<float>(C);
    float m = 0.0f, variance = average;
    if constexpr (Centred) {
        m = average;
        Vec<float, N> squares = simt::broadcast<N>(0.0f);
        for_each_of_row<Tiling>(end, [&](int i, int v) INLINE {
            const Vec<float, N> value = x.get_again(i, v);
            UNROLL
            for (int k = 0; k < N; k++) squares[k] += (value[k] - m) * (value[k] - m);
        });
        variance = simt::row_sum<threads>(simt::sum(squares)) / static_cast<float>(C);
    }
    const float s = simt::rsqrt(variance + eps);
    for_each_of_row<Tiling>(end, [&](int i, int v) INLINE {
        const Vec<float, N> value = x.get_again(i, v), w = load<N>(weight + i);
        Vec<float, N> b = simt::broadcast<N>(0.0f), o;
        if constexpr (Centred) b = load<N>(bias + i);
        UNROLL
        for (int k = 0; k < N; k++) o[k] = (value[k] - m) * s * w[k] + b[k];
        store(out + first + i, o);
    });
    if (row < rows && simt::row_lane<threads>() == 0) {
        if constexpr (Centred) mean[row] = m;
        rstd[row] = s;
    }
}

// With a branch, residual = inp + branch and out = layernorm(residual); residual may be inp or branch.
// Without a bias, mean is not used. Reads N*C and writes N*C elements, or with a branch 2*N*C each; bound by
// memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void layernorm_forward(T* out, T* residual, float* mean, float* rstd, const T* inp, const T* branch,
                       const T* weight, const T* bias, float eps, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    for_row_tiling<W, T>(C, [&]<class Tiling>(Tiling) {
        const auto start = [&](auto kernel) {
            launch_rows<Tiling::W::threads>(kernel, N, 0, stream, out, residual, mean, rstd, inp, branch,
                                            weight, bias, eps, N, C);
        };
        if (branch && bias) start(layernorm_forward_kernel<Tiling, T, true, true>);
        else if (branch) start(layernorm_forward_kernel<Tiling, T, true, false>);
        else if (bias) start(layernorm_forward_kernel<Tiling, T, false, true>);
        else start(layernorm_forward_kernel<Tiling, T, false, false>);
    });
}

// Backward divides the rows into groups, one for each block. A block processes its group in order and stores
// partial sums of dweight, dbias and dinp_sum, which add_rows adds up. All blocks of the wide kernel are
// resident on a GPU at the same time: 20 warps fit on an SM, because its __launch_bounds__ of 640 threads
// leaves a thread at most 96 registers. The order of the additions depends on N, C and the number of SMs,
// which determine the groups. The plain kernel computes rows in batches, so that it reads and writes the
// partial sums once for each batch. The wide kernel keeps them in registers.
constexpr int layernorm_batch = 4;

inline unsigned layernorm_block(int C) { return layernorm_is_wide(C) ? layernorm_wide_block(C) : 256; }
inline size_t layernorm_max_groups(int C) {
    return simt::multiprocessors() * std::max(1u, layernorm_max_block / layernorm_block(C));
}
inline size_t layernorm_rows_per_group(size_t N, int C) {
    const size_t batches = ceil_div<size_t>(N, layernorm_max_groups(C) * layernorm_batch);
    return std::max<size_t>(4, batches) * layernorm_batch;
}
inline size_t layernorm_groups(size_t N, int C) { return ceil_div(N, layernorm_rows_per_group(N, C)); }

// Floats of scratch that layernorm_backward needs for up to N rows, where it adds up to so many sums. Fewer
// rows can need more groups, so this is the maximum over all numbers of rows up to N.
inline size_t layernorm_backward_scratch(size_t N, int C, size_t sums) {
    return std::min<size_t>(ceil_div<size_t>(N, 4 * layernorm_batch), layernorm_max_groups(C)) * sums *
           static_cast<size_t>(C);
}

// The averages over one row; dout and inp point to its first channel.
template <bool Centred, class Tiling, class T>
__device__ __forceinline__ LayerNormRow layernorm_row(const T* dout, const T* inp, const T* weight,
                                                      float mean, float rstd, int C) {
    constexpr int threads = Tiling::W::threads, N = Tiling::N;
    Vec<float, N> dnorms = simt::broadcast<N>(0.0f), dnorm_norms = dnorms;
    for_each_of_row<Tiling>(C, [&](int i, int) INLINE {
        const Vec<float, N> d = load<N>(dout + i), x = load<N>(inp + i), w = load<N>(weight + i);
        UNROLL
        for (int k = 0; k < N; k++) {
            if constexpr (Centred) dnorms[k] += d[k] * w[k];
            dnorm_norms[k] += d[k] * w[k] * ((x[k] - mean) * rstd);
        }
    });
    return {mean, rstd, Centred ? simt::row_sum<threads>(simt::sum(dnorms)) / static_cast<float>(C) : 0.0f,
            simt::row_sum<threads>(simt::sum(dnorm_norms)) / static_cast<float>(C)};
}

// dinp = dresidual + gradient of inp;  partial (groups, Sums, C) = a group's sums of dout * norm, of dout
// and, if Sums is 3, of dinp. If Sums is 1, this is RMSNorm. W::threads threads share a row and read it
// twice, the second time from the cache. The CPU uses this kernel. A GPU uses it if rows are not whole
// vectors or too long for the wide kernel.
template <class W, int N, class T, int Sums>
__global__ void __launch_bounds__(simt::block_of<W>, 1)
    layernorm_backward_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout,
                              const T* __restrict__ inp, const T* __restrict__ weight,
                              const float* __restrict__ mean, const float* __restrict__ rstd, size_t rows,
                              int C, size_t rows_per_group) {
    constexpr int R = layernorm_batch;
    constexpr bool centred = Sums > 1;
    using Tiling = RowTiling<W, N, 0>;
    const size_t begin = blockIdx.x * rows_per_group, end = min(rows, begin + rows_per_group);
    float* const sums = partial + static_cast<size_t>(blockIdx.x) * Sums * C;

    // `count` is a constant: if each row had a condition, g++ would keep the sums in memory.
    const auto add_rows_from = [&]<int count>(size_t first, std::integral_constant<int, count>) INLINE {
        LayerNormRow batch[count];
        UNROLL_REGISTERS
        for (int r = 0; r < count; r++) {
            const size_t row = first + r;
            batch[r] = layernorm_row<centred, Tiling>(dout + row * C, inp + row * C, weight,
                                                      centred ? mean[row] : 0.0f, rstd[row], C);
        }
        for_each_of_row<Tiling>(C, [&](int i, int) INLINE {
            const Vec<float, N> w = load<N>(weight + i);
            Vec<float, N> sum[Sums];
            UNROLL_REGISTERS
            for (int n = 0; n < Sums; n++)
                sum[n] = first == begin ? simt::broadcast<N>(0.0f) : load<N>(sums + n * C + i);
            UNROLL_REGISTERS
            for (int r = 0; r < count; r++) {
                const size_t at = (first + r) * C + i;
                Vec<float, N> dx = dresidual ? load<N>(dresidual + at) : simt::broadcast<N>(0.0f);
                layernorm_gradient(dx, sum, load<N>(dout + at), load<N>(inp + at), w, batch[r]);
                store(dinp + at, dx);
            }
            UNROLL_REGISTERS
            for (int n = 0; n < Sums; n++) store(sums + n * C + i, sum[n]);
        });
    };
    size_t first = begin;
    for (; first + R <= end; first += R) add_rows_from(first, std::integral_constant<int, R>{});
    for (; first < end; first++) add_rows_from(first, std::integral_constant<int, 1>{});
}

// dinp (N, C) = dresidual + gradient of inp, where dresidual may be nullptr (none) or dinp itself;  dweight
// (C) and dbias (C) +=;  dinp_sum (C), unless it is nullptr, += the sum over rows of dinp before it is
// rounded to T. For RMSNorm dbias and dinp_sum are nullptr, and mean is not used. Reads 2*N*C (3*N*C with
// dresidual) and writes N*C elements; bound by memory bandwidth.
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
    else if (dbias) start_with(std::integral_constant<int, 2>{});
    else start_with(std::integral_constant<int, 1>{});
    add_rows<W>({dweight, dbias, dinp_sum}, scratch, groups, C, stream);
}
