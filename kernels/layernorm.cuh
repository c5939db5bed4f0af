// layernorm.cuh: out = norm * weight + bias, norm = (inp - mean) * rstd, over the last dimension
//   inp, out (N, C)   weight, bias (C)   mean, rstd (N) fp32, kept for backward
//   Backward, with dnorm = dout * weight and averages over a row:
//   dinp = (dnorm - average(dnorm) - norm * average(dnorm * norm)) * rstd,   dweight = sum over rows of dout * norm,   dbias = sum of dout
//   Ba et al. 2016, arXiv:1607.06450; eps = 1e-5 as in GPT-2
#pragma once
#include <algorithm>

#include "common.cuh"

constexpr float layernorm_eps = 1e-5f;

// W::threads share a row. The row is read from memory in the first pass; the two later ones find it in the cache.
// With Residual the first pass also forms residual = inp + branch, and it is the residual that is normalised.
template <class W, int N, class T, bool Residual>
__global__ void layernorm_forward_kernel(T* out, T* residual, float* mean, float* rstd, const T* inp, const T* branch, const T* weight, const T* bias,
                                         size_t rows, int C) {
    constexpr int threads = W::threads;
    const size_t row = simt::row_index<threads>(), first = row * C;
    const int lane = simt::row_lane<threads>();
    const int begin = lane * N, end = row < rows ? C : 0;  // beyond the last row there is nothing to do, but the sums are met together
    const T* x = (Residual ? residual : inp) + first;

    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    for (int i = begin; i < end; i += threads * N) {
        Vec<float, N> v = load<N>(inp + first + i);
        if constexpr (Residual) {
            const Vec<float, N> b = load<N>(branch + first + i);
            UNROLL
            for (int k = 0; k < N; k++) v[k] = static_cast<float>(T(v[k] + b[k]));  // what later passes, and backward, will read
            store(residual + first + i, v);
        }
        UNROLL
        for (int k = 0; k < N; k++) sums[k] += v[k];
    }
    const float m = simt::row_sum<threads>(simt::sum(sums)) / static_cast<float>(C);
    Vec<float, N> squares = simt::broadcast<N>(0.0f);
    for (int i = begin; i < end; i += threads * N) {
        const Vec<float, N> v = load<N>(x + i);
        UNROLL
        for (int k = 0; k < N; k++) squares[k] += (v[k] - m) * (v[k] - m);
    }
    const float s = simt::rsqrt(simt::row_sum<threads>(simt::sum(squares)) / static_cast<float>(C) + layernorm_eps);
    for (int i = begin; i < end; i += threads * N) {
        const Vec<float, N> v = load<N>(x + i), w = load<N>(weight + i), b = load<N>(bias + i);
        Vec<float, N> o;
        UNROLL
        for (int k = 0; k < N; k++) o[k] = (v[k] - m) * s * w[k] + b[k];
        store(out + first + i, o);
    }
    if (row < rows && lane == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

// Reads N*C and writes N*C elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* inp, const T* weight, const T* bias, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    simt::for_vector_length<W, T>(C, [&](auto n) {
        launch_rows<W::threads>(layernorm_forward_kernel<W, n(), T, false>, N, 0, stream, out, nullptr, mean, rstd, inp, nullptr, weight, bias, N, C);
    });
}

// residual = inp + branch, out = layernorm(residual); residual may be inp or branch. Reads 2 N*C and writes 2 N*C elements; bound by memory
// bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void residual_layernorm_forward(T* out, T* residual, float* mean, float* rstd, const T* inp, const T* branch, const T* weight, const T* bias,
                                size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    simt::for_vector_length<W, T>(C, [&](auto n) {
        launch_rows<W::threads>(layernorm_forward_kernel<W, n(), T, true>, N, 0, stream, out, residual, mean, rstd, inp, branch, weight, bias, N, C);
    });
}

// Rows are divided into groups; W::threads work through one, and keep its share of dweight and dbias. How they are divided follows from N alone,
// so the order of the additions does not depend on the machine's size.
constexpr size_t layernorm_max_groups = 2048;  // fills the largest GPU
constexpr int layernorm_batch = 4;             // rows that a thread looks at together: partial sums are read and written once for all of them

inline size_t layernorm_rows_per_group(size_t N) {
    const size_t batches = ceil_div<size_t>(N, layernorm_max_groups * layernorm_batch);
    return std::max<size_t>(4, batches) * layernorm_batch;
}
inline size_t layernorm_groups(size_t N) { return ceil_div(N, layernorm_rows_per_group(N)); }

// Floats of scratch that layernorm_backward needs.
inline size_t layernorm_backward_scratch(size_t N, int C) { return layernorm_groups(N) * 2 * C; }

// dinp = dresidual + gradient of inp;  partial (groups, 2, C) = the group's sums of dout * norm and of dout
template <class W, int N, class T>
__global__ void layernorm_backward_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout, const T* __restrict__ inp,
                                          const T* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd, size_t rows,
                                          int C, size_t rows_per_group) {
    constexpr int threads = W::threads, R = layernorm_batch;
    const size_t group = blockIdx.x, group_begin = group * rows_per_group,
                 group_end = rows < group_begin + rows_per_group ? rows : group_begin + rows_per_group;
    const int begin = static_cast<int>(threadIdx.x) * N;
    float *dweight = partial + group * 2 * C, *dbias = dweight + C;

    // dinp moves along by itself: indexed by row as the inputs are, it makes nvcc 13 split its 16-byte stores into four.
    dinp += group_begin * C;
    for (size_t first = group_begin; first < group_end; first += R, dinp += static_cast<size_t>(R) * C) {
        const int count = group_end - first < R ? static_cast<int>(group_end - first) : R;
        float m[R], s[R], average[R], average_norm[R];  // of dnorm and of dnorm * norm
        UNROLL
        for (int r = 0; r < R; r++) {
            if (r >= count) continue;
            const size_t row = first + r;
            m[r] = mean[row], s[r] = rstd[row];
            Vec<float, N> sums = simt::broadcast<N>(0.0f), norm_sums = sums;
            for (int i = begin; i < C; i += threads * N) {
                const Vec<float, N> d = load<N>(dout + row * C + i), x = load<N>(inp + row * C + i), w = load<N>(weight + i);
                UNROLL
                for (int k = 0; k < N; k++) {
                    sums[k] += d[k] * w[k];
                    norm_sums[k] += d[k] * w[k] * ((x[k] - m[r]) * s[r]);
                }
            }
            average[r] = simt::row_sum<threads>(simt::sum(sums)) / static_cast<float>(C);
            average_norm[r] = simt::row_sum<threads>(simt::sum(norm_sums)) / static_cast<float>(C);
        }
        for (int i = begin; i < C; i += threads * N) {
            const Vec<float, N> w = load<N>(weight + i);
            Vec<float, N> dw = simt::broadcast<N>(0.0f), db = dw;
            if (first != group_begin) dw = load<N>(dweight + i), db = load<N>(dbias + i);
            UNROLL
            for (int r = 0; r < R; r++) {
                if (r >= count) continue;
                const size_t at = (first + r) * C + i;
                const Vec<float, N> d = load<N>(dout + at), x = load<N>(inp + at);
                Vec<float, N> dx = dresidual ? load<N>(dresidual + at) : simt::broadcast<N>(0.0f);
                UNROLL
                for (int k = 0; k < N; k++) {
                    const float norm = (x[k] - m[r]) * s[r];
                    dw[k] += d[k] * norm;
                    db[k] += d[k];
                    dx[k] += (d[k] * w[k] - average[r] - norm * average_norm[r]) * s[r];
                }
                store(dinp + static_cast<size_t>(r) * C + i, dx);
            }
            store(dweight + i, dw);
            store(dbias + i, db);
        }
    }
}

// dweight (C), dbias (C) += the groups' sums. blockIdx.y chooses which of the two.
// GPU: a block adds 32 columns, each of its warps every 16th group, then the warps' sums in order. CPU: a thread adds N columns, group by group.
template <class W>
constexpr int layernorm_parameter_warps = W::threads == 1 ? 1 : 16;

template <class W, int N>
__global__ void layernorm_backward_parameters_kernel(float* dweight, float* dbias, const float* partial, int groups, int C) {
    constexpr int warps = layernorm_parameter_warps<W>;
    const int warp = static_cast<int>(threadIdx.x) / simt::warp_size, lane = static_cast<int>(threadIdx.x) % simt::warp_size;
    const int column = (static_cast<int>(blockIdx.x) * simt::warp_size + lane) * N;
    float* out = (blockIdx.y == 0 ? dweight : dbias) + column;
    partial += static_cast<size_t>(blockIdx.y) * C + column;

    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    for (int group = warp; column < C && group < groups; group += warps) {
        const Vec<float, N> v = load<N>(partial + static_cast<size_t>(group) * 2 * C);
        UNROLL
        for (int k = 0; k < N; k++) sums[k] += v[k];
    }
    if constexpr (warps > 1) {
        simt::SharedMemory shared;
        float* of_warp = shared.take<float>(warps * simt::warp_size);
        of_warp[threadIdx.x] = sums[0];
        __syncthreads();
        sums[0] = 0.0f;
        for (int other = 0; warp == 0 && other < warps; other++) sums[0] += of_warp[other * simt::warp_size + lane];
    }
    if (warp == 0 && column < C) {
        const Vec<float, N> before = load<N>(out);
        UNROLL
        for (int k = 0; k < N; k++) sums[k] += before[k];
        store(out, sums);
    }
}

// dinp (N, C) = dresidual + gradient of inp, where dresidual may be nullptr (none) or dinp itself;  dweight (C), dbias (C) +=
// Reads 2 N*C (3 with dresidual) and writes N*C elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void layernorm_backward(T* dinp, float* dweight, float* dbias, float* scratch, const T* dresidual, const T* dout, const T* inp, const T* weight,
                        const float* mean, const float* rstd, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    const unsigned groups = static_cast<unsigned>(layernorm_groups(N));
    simt::for_vector_length<W, T>(C, [&](auto n) {
        launch(layernorm_backward_kernel<W, n(), T>, groups, W::threads, 0, stream, dinp, scratch, dresidual, dout, inp, weight, mean, rstd, N, C,
               layernorm_rows_per_group(N));
    });
    // GPU: neighbouring threads add neighbouring floats; CPU: a thread adds a vector.
    using Columns = std::conditional_t<W::threads == 1, W, simt::Width<W::threads, sizeof(float)>>;
    simt::for_vector_length<Columns, float>(C, [&](auto n) {
        constexpr unsigned block = simt::warp_size * layernorm_parameter_warps<W>;
        const dim3 grid(static_cast<unsigned>(ceil_div(C, simt::warp_size * n())), 2);
        launch(layernorm_backward_parameters_kernel<W, n()>, grid, block, simt::shared_size<float>(block), stream, dweight, dbias, scratch, groups,
               C);
    });
}
