// rmsnorm.cuh: out = inp * rstd * weight, rstd = 1 / sqrt(average(inp^2) + eps), over the last dimension
//   inp, out (N, C)   weight (C)   rstd (N) fp32, kept for backward
//   Backward, with dnorm = dout * weight, norm = inp * rstd and averages over a row:
//     dinp = (dnorm - norm * average(dnorm * norm)) * rstd
//     dweight = sum over rows of dout * norm
//   Zhang and Sennrich 2019, arXiv:1910.07467
#pragma once
#include "kernels/add_rows.cuh"
#include "kernels/common.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/row_tiling.cuh"

// With Residual the row is residual = inp + branch, rounded to T as later passes and backward will read it.
// Tiling::W::threads threads share a row.
template <class Tiling, class T, bool Residual>
__global__ void rmsnorm_forward_kernel(T* out, T* residual, float* rstd, const T* inp, const T* branch,
                                       const T* weight, float eps, size_t rows, int C) {
    constexpr int threads = Tiling::W::threads, N = Tiling::N;
    const size_t row = simt::row_index<threads>(), first = row * C;
    // A row past the last one has no channels, but its threads take part in the collectives.
    const int end = row < rows ? C : 0;
    HeldRow<Tiling, T> x(inp + first);
    [[maybe_unused]] HeldRow<Tiling, T> b(Residual ? branch + first : nullptr);
    for_each_of_row<Tiling>(end, [&](int i, int v) INLINE {
        x.fetch(i, v);
        if constexpr (Residual) b.fetch(i, v);
    });
    Vec<float, N> squares = simt::broadcast<N>(0.0f);
    for_each_of_row<Tiling>(end, [&](int i, int v) INLINE {
        Vec<float, N> value = x.get(i, v);
        if constexpr (Residual) {
            const Vec<float, N> added = b.get(i, v);
            UNROLL
            for (int k = 0; k < N; k++) value[k] += added[k];
            const Vec<T, N> rounded = narrow<T>(value);
            x.put(residual + first, i, v, rounded);
            value = widen(rounded);
        }
        UNROLL
        for (int k = 0; k < N; k++) squares[k] += value[k] * value[k];
    });
    if constexpr (Residual) x.memory = residual + first;
    const float s = simt::rsqrt(simt::row_sum<threads>(simt::sum(squares)) / static_cast<float>(C) + eps);
    for_each_of_row<Tiling>(end, [&](int i, int v) INLINE {
        const Vec<float, N> value = x.get_again(i, v), w = load<N>(weight + i);
        Vec<float, N> o;
        UNROLL
        for (int k = 0; k < N; k++) o[k] = value[k] * s * w[k];
        store(out + first + i, o);
    });
    if (row < rows && simt::row_lane<threads>() == 0) rstd[row] = s;
}

// Reads N*C and writes N*C elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void rmsnorm_forward(T* out, float* rstd, const T* inp, const T* weight, float eps, size_t N, int C,
                     stream_t stream) {
    CHECK(N > 0 && C > 0, "rmsnorm: N = {} and C = {} must be positive", N, C);
    for_row_tiling<W, T>(C, [&]<class Tiling>(Tiling) {
        launch_rows<Tiling::W::threads>(rmsnorm_forward_kernel<Tiling, T, false>, N, 0, stream, out, nullptr,
                                        rstd, inp, nullptr, weight, eps, N, C);
    });
}

// residual = inp + branch, out = rmsnorm(residual); residual may be inp or branch. Reads 2*N*C and writes
// 2*N*C elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void residual_rmsnorm_forward(T* out, T* residual, float* rstd, const T* inp, const T* branch,
                              const T* weight, float eps, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "rmsnorm: N = {} and C = {} must be positive", N, C);
    for_row_tiling<W, T>(C, [&]<class Tiling>(Tiling) {
        launch_rows<Tiling::W::threads>(rmsnorm_forward_kernel<Tiling, T, true>, N, 0, stream, out, residual,
                                        rstd, inp, branch, weight, eps, N, C);
    });
}

// Floats of scratch that rmsnorm_backward needs for up to N rows, which it divides as layernorm_backward
// does: one sum of C floats for each group of rows.
inline size_t rmsnorm_backward_scratch(size_t N, int C) { return layernorm_backward_scratch(N, C) / 3; }

// dx += the gradient of x, for N channels of a row; sum += the row's part of dweight.
// average: that of dnorm * norm over the row
template <int N>
__device__ __forceinline__ void rmsnorm_gradient(Vec<float, N>& dx, Vec<float, N>& sum,
                                                 const Vec<float, N>& dout, const Vec<float, N>& x,
                                                 const Vec<float, N>& weight, float rstd, float average) {
    UNROLL
    for (int k = 0; k < N; k++) {
        const float norm = x[k] * rstd;
        sum[k] += dout[k] * norm;
        dx[k] += (dout[k] * weight[k] - norm * average) * rstd;
    }
}

// dinp = dresidual + gradient of inp;  partial (groups, C) = a group's sums of dout * norm. W::threads
// threads share a row and read it twice, the second time from the cache. The CPU uses this kernel. A GPU
// uses it if rows are not whole vectors or too long for the wide kernel.
template <class W, int N, class T>
__global__ void __launch_bounds__(simt::block_of<W>, 1)
    rmsnorm_backward_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout,
                            const T* __restrict__ inp, const T* __restrict__ weight,
                            const float* __restrict__ rstd, size_t rows, int C, size_t rows_per_group) {
    constexpr int R = layernorm_batch;
    using Tiling = RowTiling<W, N, 0>;
    const size_t begin = blockIdx.x * rows_per_group, end = min(rows, begin + rows_per_group);
    float* const sums = partial + static_cast<size_t>(blockIdx.x) * C;

    for (size_t first = begin; first < end; first += R) {
        const int count = end - first < R ? static_cast<int>(end - first) : R;
        float averages[R];
        UNROLL
        for (int r = 0; r < R; r++) {
            if (r >= count) continue;
            const size_t row = first + r;
            Vec<float, N> products = simt::broadcast<N>(0.0f);
            for_each_of_row<Tiling>(C, [&](int i, int) INLINE {
                const Vec<float, N> d = load<N>(dout + row * C + i), x = load<N>(inp + row * C + i),
                                    w = load<N>(weight + i);
                UNROLL
                for (int k = 0; k < N; k++) products[k] += d[k] * w[k] * (x[k] * rstd[row]);
            });
            averages[r] = simt::row_sum<W::threads>(simt::sum(products)) / static_cast<float>(C);
        }
        for_each_of_row<Tiling>(C, [&](int i, int) INLINE {
            const Vec<float, N> w = load<N>(weight + i);
            Vec<float, N> sum = first == begin ? simt::broadcast<N>(0.0f) : load<N>(sums + i);
            UNROLL
            for (int r = 0; r < R; r++) {
                if (r >= count) continue;
                const size_t at = (first + r) * C + i;
                Vec<float, N> dx = dresidual ? load<N>(dresidual + at) : simt::broadcast<N>(0.0f);
                rmsnorm_gradient(dx, sum, load<N>(dout + at), load<N>(inp + at), w, rstd[first + r],
                                 averages[r]);
                store(dinp + at, dx);
            }
            store(sums + i, sum);
        });
    }
}

// The same on a GPU, for rows that are whole vectors and not too long: layernorm_backward_wide.cuh explains
// how a block walks down its rows.
template <int N, class T>
__global__ void __launch_bounds__(layernorm_max_block)
    rmsnorm_backward_wide_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout,
                                 const T* __restrict__ inp, const T* __restrict__ weight,
                                 const float* __restrict__ rstd, size_t rows, int C, size_t rows_per_group) {
    constexpr int vectors = layernorm_channels / N;
    const size_t begin = blockIdx.x * rows_per_group, end = min(rows, begin + rows_per_group);
    Vec<T, N> weights[vectors] = {};
    Vec<float, N> sums[vectors];
    for_each_of_wide_row<N>(C, [&](int v, int i) INLINE {
        weights[v] = load_raw<N>(weight + i);
        sums[v] = simt::broadcast<N>(0.0f);
    });
    WideRow<T, N> next;  // its mean is not used
    next.fetch(begin, C, dresidual, dout, inp, rstd, rstd);
    for (size_t row = begin; row < end; row++) {
        WideRow<T, N> now = next;
        if (row + 1 < end) next.fetch(row + 1, C, dresidual, dout, inp, rstd, rstd);
        if (!simt::uniform_registers && dresidual) {
            for_each_of_wide_row<N>(
                C, [&](int v, int i) INLINE { now.dresidual[v] = load_raw<N>(dresidual + row * C + i); });
        }
        float products = 0.0f;
        for_each_of_wide_row<N>(C, [&](int v, int) INLINE {
            stay_narrow(now.dout[v]), stay_narrow(now.inp[v]), stay_narrow(weights[v]);
            const Vec<float, N> d = widen(now.dout[v]), x = widen(now.inp[v]), w = widen(weights[v]);
            UNROLL
            for (int k = 0; k < N; k++) products += d[k] * w[k] * (x[k] * now.rstd);
        });
        const float average = simt::block_sum(products) / static_cast<float>(C);
        for_each_of_wide_row<N>(C, [&](int v, int i) INLINE {
            stay_narrow(now.dout[v]), stay_narrow(now.inp[v]);
            stay_narrow(now.dresidual[v]), stay_narrow(weights[v]);
            Vec<float, N> dx = dresidual ? widen(now.dresidual[v]) : simt::broadcast<N>(0.0f);
            rmsnorm_gradient(dx, sums[v], widen(now.dout[v]), widen(now.inp[v]), widen(weights[v]), now.rstd,
                             average);
            store(dinp + row * C + i, dx);
        });
    }
    for_each_of_wide_row<N>(
        C, [&](int v, int i) INLINE { store(partial + static_cast<size_t>(blockIdx.x) * C + i, sums[v]); });
}

// dinp (N, C) = dresidual + gradient of inp, where dresidual may be nullptr (none) or dinp itself;
// dweight (C) +=. Reads 2*N*C (3*N*C with dresidual) and writes N*C elements; bound by memory bandwidth.
// Deterministic: the sums of groups are added in order.
template <class W = simt::NativeWidth<32>, class T>
void rmsnorm_backward(T* dinp, float* dweight, float* scratch, const T* dresidual, const T* dout,
                      const T* inp, const T* weight, const float* rstd, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "rmsnorm: N = {} and C = {} must be positive", N, C);
    const size_t groups = layernorm_groups(N, C);
    const auto start = [&](auto kernel, unsigned block) {
        launch(kernel, static_cast<unsigned>(groups), block, 0, stream, dinp, scratch, dresidual, dout, inp,
               weight, rstd, N, C, layernorm_rows_per_group(N, C));
    };
    simt::for_vector_length<W, T>(C, [&](auto n) {
        if constexpr (W::threads > 1 && n() > 1) {
            if (layernorm_is_wide(C)) return start(rmsnorm_backward_wide_kernel<n(), T>, layernorm_block(C));
        }
        using Shared = std::conditional_t<W::threads == 1, W, simt::GpuWidth<256>>;
        start(rmsnorm_backward_kernel<Shared, n(), T>, Shared::threads);
    });
    add_rows<W>({dweight}, scratch, groups, C, stream);
}
