// layernorm.cuh: out = norm * weight + bias, norm = (inp - mean) * rstd, over the last dimension
//   inp, out (N, C)   weight, bias (C)   mean, rstd (N) fp32, kept for backward
//   Backward, with dnorm = dout * weight and averages over a row:
//   dinp = (dnorm - average(dnorm) - norm * average(dnorm * norm)) * rstd,   dweight = sum over rows of dout * norm,   dbias = sum of dout
//   Where inp is a residual stream, the sum of dinp over rows is the gradient of the bias of the projection last added to it: backward has it.
//   Ba et al. 2016, arXiv:1607.06450; eps = 1e-5 as in GPT-2
#pragma once
#include <algorithm>

#include "add_rows.cuh"
#include "common.cuh"

constexpr float layernorm_eps = 1e-5f;

// How a row is cut: W::threads share it, in vectors of N, of which each thread holds `Held` in registers between the passes over the row.
//   Held = 0: none, and the later passes read the row again from the cache. So do the CPU (it is in the first-level cache), rows whose channels fill
//   no vector, and rows too long for a block's registers.
//   A warp of the GPU asks for a whole row before it waits: 768 channels of bf16 are 1.5 KB of each input, and 16 warps or more on an SM 48 KB of two
//   inputs, 72 KB of three (backward). 17 KB must be on their way at any time (elementwise.cuh).
template <class W_, int N_, int Held_>
struct RowCut {
    using W = W_;
    static constexpr int N = N_, held = Held_, registers = Held_ > 0 ? Held_ : 1;
};

// Calls body(RowCut) with the cut for rows of C channels. GPU: what is too long for a warp's registers goes to a block of 256 threads.
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

// Calls body(i, v) for this thread's vectors of a row that ends at `end`: channels i to i + N - 1. Where vectors are held, v counts them.
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
__global__ void layernorm_forward_kernel(T* out, T* residual, float* mean, float* rstd, const T* inp, const T* branch, const T* weight, const T* bias,
                                         size_t rows, int C) {
    constexpr int threads = Cut::W::threads, N = Cut::N;
    const size_t row = simt::row_index<threads>(), first = row * C;
    const int end = row < rows ? C : 0;  // beyond the last row there is nothing to do, but the sums are met together
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
    const float s = simt::rsqrt(simt::row_sum<threads>(simt::sum(squares)) / static_cast<float>(C) + layernorm_eps);
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
void layernorm_forward(T* out, float* mean, float* rstd, const T* inp, const T* weight, const T* bias, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    for_row_cut<W, T>(C, [&]<class Cut>(Cut) {
        launch_rows<Cut::W::threads>(layernorm_forward_kernel<Cut, T, false>, N, 0, stream, out, nullptr, mean, rstd, inp, nullptr, weight, bias, N,
                                     C);
    });
}

// residual = inp + branch, out = layernorm(residual); residual may be inp or branch. Reads 2 N*C and writes 2 N*C elements; bound by memory
// bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void residual_layernorm_forward(T* out, T* residual, float* mean, float* rstd, const T* inp, const T* branch, const T* weight, const T* bias,
                                size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    for_row_cut<W, T>(C, [&]<class Cut>(Cut) {
        launch_rows<Cut::W::threads>(layernorm_forward_kernel<Cut, T, true>, N, 0, stream, out, residual, mean, rstd, inp, branch, weight, bias, N,
                                     C);
    });
}

// Rows are divided into groups; W::threads work through one, and add up its share of dweight and dbias. How they are divided follows from N alone,
// so the order of the additions does not depend on the machine's size.
// A GPU of 132 SMs holds 1536 groups at once: 12 warps each, as many as have registers for their rows. Their sums, 12 bytes a channel, fit as well to
// 1600 channels on an SM of 228 KiB of shared memory (sm_90), and to 1144 on one of 164 (sm_80); of longer rows fewer are worked on at once.
constexpr size_t layernorm_max_groups = 1536;
constexpr int layernorm_batch = 4;  // rows looked at together where none is held: partial sums are read and written once for all of them

inline size_t layernorm_rows_per_group(size_t N) {
    const size_t batches = ceil_div<size_t>(N, layernorm_max_groups * layernorm_batch);
    return std::max<size_t>(4, batches) * layernorm_batch;
}
inline size_t layernorm_groups(size_t N) { return ceil_div(N, layernorm_rows_per_group(N)); }

// Floats of scratch that layernorm_backward needs for up to N rows: a few rows less may be more groups, of fewer rows each.
inline size_t layernorm_backward_scratch(size_t N, int C) {
    return std::min<size_t>(ceil_div<size_t>(N, 4 * layernorm_batch), layernorm_max_groups) * 3 * C;
}

// Groups of a block. Where rows are held their sums are in shared memory, and the block adds up those of its groups: a quarter as much for
// add_rows to read.
template <class Cut>
constexpr int layernorm_teams = Cut::held > 0 && Cut::W::threads == simt::warp_size ? 4 : 1;

template <class Cut>
constexpr int layernorm_block = layernorm_teams<Cut>* simt::block_of<typename Cut::W>;

// A vector of sums in shared memory: four floats here, four in the array's other half, so that the lanes of a warp find 16 bytes each side by side,
// in different banks.
template <int N>
__device__ __forceinline__ Vec<float, N> load_planes(const float* sums, int i, int C) {
    constexpr int planes = N < 4 ? 1 : N / 4, length = N / planes;
    Vec<float, N> v;
    UNROLL
    for (int p = 0; p < planes; p++) {
        const Vec<float, length> part = load<length>(sums + p * (C / planes) + i / planes);
        UNROLL
        for (int k = 0; k < length; k++) v[p * length + k] = part[k];
    }
    return v;
}
template <int N>
__device__ __forceinline__ void store_planes(float* sums, int i, int C, const Vec<float, N>& v) {
    constexpr int planes = N < 4 ? 1 : N / 4, length = N / planes;
    UNROLL
    for (int p = 0; p < planes; p++) {
        Vec<float, length> part;
        UNROLL
        for (int k = 0; k < length; k++) part[k] = v[p * length + k];
        store(sums + p * (C / planes) + i / planes, part);
    }
}

// dinp = dresidual + gradient of inp;  partial (blocks, Sums, C) = the block's sums of dout * norm, of dout and, where Sums is 3, of dinp
template <class Cut, class T, int Sums>
__global__ void __launch_bounds__(layernorm_block<Cut>, 384 / layernorm_block<Cut>)
    layernorm_backward_kernel(T* dinp, float* partial, const T* dresidual, const T* __restrict__ dout, const T* __restrict__ inp,
                              const T* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd, size_t rows, int C,
                              size_t rows_per_group) {
    constexpr int threads = Cut::W::threads, N = Cut::N, teams = layernorm_teams<Cut>, R = Cut::held > 0 ? 1 : layernorm_batch;
    const int team = static_cast<int>(threadIdx.x) / threads;
    const size_t group = static_cast<size_t>(blockIdx.x) * teams + team, group_begin = min(rows, group * rows_per_group),
                 group_end = min(rows, group_begin + rows_per_group);
    float* const of_block = partial + static_cast<size_t>(blockIdx.x) * Sums * C;
    float* sums = of_block;
    if constexpr (Cut::held > 0) {
        simt::SharedMemory shared;
        sums = shared.take<float>(static_cast<size_t>(teams) * Sums * C) + team * Sums * C;
    }

    // dinp moves along by itself: indexed by row as the inputs are, it makes nvcc 13 split its 16-byte stores into four.
    dinp += group_begin * C;
    for (size_t first = group_begin; first < group_end; first += R, dinp += static_cast<size_t>(R) * C) {
        const int count = group_end - first < R ? static_cast<int>(group_end - first) : R;
        [[maybe_unused]] Vec<T, N> held_d[Cut::registers], held_x[Cut::registers], held_residual[Cut::registers];
        if constexpr (Cut::held > 0) {
            for_each_of_row<Cut>(C, [&](int i, int v) INLINE {
                held_d[v] = load_raw<N>(dout + first * C + i), held_x[v] = load_raw<N>(inp + first * C + i);
                if (dresidual) held_residual[v] = load_raw<N>(dresidual + first * C + i);
            });
        }
        // The vector at `at`, or the v-th that is held.
        const auto vector = [](const T* array, Vec<T, N>* held, size_t at, int v) INLINE {
            if constexpr (Cut::held > 0) {
                stay_narrow(held[v]);
                return widen(held[v]);
            } else {
                return load<N>(array + at);
            }
        };
        float m[R], s[R], average[R], average_norm[R];  // of dnorm and of dnorm * norm
        UNROLL
        for (int r = 0; r < R; r++) {
            if (r >= count) continue;
            const size_t row = first + r;
            m[r] = mean[row], s[r] = rstd[row];
            Vec<float, N> dnorms = simt::broadcast<N>(0.0f), norm_sums = dnorms;
            for_each_of_row<Cut>(C, [&](int i, int v) INLINE {
                const size_t at = row * C + i;
                const Vec<float, N> d = vector(dout, held_d, at, v), x = vector(inp, held_x, at, v), w = load<N>(weight + i);
                UNROLL
                for (int k = 0; k < N; k++) {
                    dnorms[k] += d[k] * w[k];
                    norm_sums[k] += d[k] * w[k] * ((x[k] - m[r]) * s[r]);
                }
            });
            average[r] = simt::row_sum<threads>(simt::sum(dnorms)) / static_cast<float>(C);
            average_norm[r] = simt::row_sum<threads>(simt::sum(norm_sums)) / static_cast<float>(C);
        }
        for_each_of_row<Cut>(C, [&](int i, int v) INLINE {
            const Vec<float, N> w = load<N>(weight + i);
            Vec<float, N> sum[Sums];
            UNROLL
            for (int n = 0; n < Sums; n++) {
                if (first == group_begin) sum[n] = simt::broadcast<N>(0.0f);
                else if constexpr (Cut::held > 0) sum[n] = load_planes<N>(sums + n * C, i, C);
                else sum[n] = load<N>(sums + n * C + i);
            }
            UNROLL
            for (int r = 0; r < R; r++) {
                if (r >= count) continue;
                const size_t at = (first + r) * C + i;
                const Vec<float, N> d = vector(dout, held_d, at, v), x = vector(inp, held_x, at, v);
                Vec<float, N> dx = dresidual ? vector(dresidual, held_residual, at, v) : simt::broadcast<N>(0.0f);
                UNROLL
                for (int k = 0; k < N; k++) {
                    const float norm = (x[k] - m[r]) * s[r];
                    sum[0][k] += d[k] * norm;
                    sum[1][k] += d[k];
                    dx[k] += (d[k] * w[k] - average[r] - norm * average_norm[r]) * s[r];
                    if constexpr (Sums > 2) sum[2][k] += dx[k];
                }
                store(dinp + static_cast<size_t>(r) * C + i, dx);
            }
            UNROLL
            for (int n = 0; n < Sums; n++) {
                if constexpr (Cut::held > 0) store_planes(sums + n * C, i, C, sum[n]);
                else store(sums + n * C + i, sum[n]);
            }
        });
    }
    if constexpr (Cut::held > 0) {
        __syncthreads();
        const float* const all = sums - team * Sums * C;
        const size_t block_begin = static_cast<size_t>(blockIdx.x) * teams * rows_per_group;
        const int busy = static_cast<int>(min(static_cast<size_t>(teams), ceil_div(rows - block_begin, rows_per_group)));
        for (int i = static_cast<int>(threadIdx.x) * N; i < Sums * C; i += teams * threads * N) {
            const int which = i / C * C;
            Vec<float, N> sum = load_planes<N>(all + which, i - which, C);
            for (int other = 1; other < busy; other++) {
                const Vec<float, N> v = load_planes<N>(all + other * Sums * C + which, i - which, C);
                UNROLL
                for (int k = 0; k < N; k++) sum[k] += v[k];
            }
            store(of_block + i, sum);
        }
    }
}

// dinp (N, C) = dresidual + gradient of inp, where dresidual may be nullptr (none) or dinp itself;  dweight (C), dbias (C) +=, and dinp_sum (C) +=
// the sum of dinp over its rows, before it is rounded to T, unless it is nullptr. Reads 2 N*C (3 with dresidual) and writes N*C elements; bound by
// memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void layernorm_backward(T* dinp, float* dweight, float* dbias, float* dinp_sum, float* scratch, const T* dresidual, const T* dout, const T* inp,
                        const T* weight, const float* mean, const float* rstd, size_t N, int C, stream_t stream) {
    CHECK(N > 0 && C > 0, "layernorm: N = {} and C = {} must be positive", N, C);
    size_t blocks = 0;
    const auto start = [&]<class Cut>(Cut, auto sums, size_t shared) {
        constexpr int teams = layernorm_teams<Cut>;
        blocks = ceil_div<size_t>(layernorm_groups(N), teams);
        launch(layernorm_backward_kernel<Cut, T, sums()>, static_cast<unsigned>(blocks), teams * Cut::W::threads, shared, stream, dinp, scratch,
               dresidual, dout, inp, weight, mean, rstd, N, C, layernorm_rows_per_group(N));
    };
    const auto start_with = [&](auto sums) {
        for_row_cut<W, T>(C, [&]<class Cut>(Cut cut) {
            if constexpr (Cut::held == 0) {
                start(cut, sums, 0);
            } else {
                const size_t shared = simt::shared_size<float>(static_cast<size_t>(layernorm_teams<Cut>) * sums() * C);
                if constexpr (layernorm_teams<Cut> == 1) {  // the rows of a warp fit every GPU
                    if (shared > simt::available_shared_bytes()) return start(RowCut<typename Cut::W, Cut::N, 0>{}, sums, 0);
                }
                start(cut, sums, shared);
            }
        });
    };
    if (dinp_sum) start_with(std::integral_constant<int, 3>{});
    else start_with(std::integral_constant<int, 2>{});
    add_rows<W>({dweight, dbias, dinp_sum}, scratch, blocks, C, stream);
}
