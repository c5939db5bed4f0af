// cross_entropy_gradient.cuh: the classifier with gradient on a GPU, for rows that fit into shared memory.
//   A block works through rows gridDim.x apart. Each row stays in shared memory from its copy to its
//   gradient, so that global memory is read once. As soon as a thread has read a vector for the last time,
//   it begins the copy of the next row's vector to the same place. A row's copies are in flight while the
//   gradient of the row before is computed and written, and they occupy no registers.
//   At V = 50257 in bf16 two blocks fit on an SM of sm_90 or sm_100 and have up to 196 KB in flight; at least
//   17 KB must be in flight (elementwise.cuh). A thread reads only what it copied itself, so the copies need
//   no barrier and cause no conflicts between banks.
//   Where only one block fits (sm_80, sm_86, sm_89, sm_120; all GPUs in fp32), nothing is in flight while it
//   adds up its row. It is the better form there too: the SMs add up at different times, and 98 KB are in
//   flight on each of the others, where 4 to 9 KB must be. Memory needs 15,000 (A100), 30,000 (RTX 3090) to
//   64,000 cycles (RTX 4090) for a row, and a block 10,000 to 20,000 for its 37,500 warp instructions.
//   Without shared memory a row would be read twice, the second time from the L2 cache only if the rows of
//   all blocks fit there: 16 MB on an RTX 3090, whose cache has 6.
#pragma once
#include "kernels/common.cuh"
#include "kernels/online_softmax.cuh"

// Bytes of shared memory that a row of V logits takes.
template <int N, class T>
constexpr size_t kept_row_bytes(int V) {
    return simt::shared_size<T>(static_cast<size_t>(V / N * N));
}
// The row is kept wherever it fits into the shared memory that a block can get.
template <int N, class T>
constexpr bool keeps_row(int V, size_t available) {
    return kept_row_bytes<N, T>(V) <= available;
}

// A thread's column after the last whole vector. There is at most one, because fewer columns are left than
// the block has threads.
struct RowTail {
    bool exists;
    float logit;
};

// This thread's share of the softmax of a row in shared memory: one pass for the maximum, one for the sum.
template <int N, int step, class T>
__device__ __forceinline__ OnlineSoftmax<N> softmax_in_shared(const T* kept, int V_whole, int lane,
                                                              RowTail tail) {
    OnlineSoftmax<N> softmax;
    Vec<float, N> highest = simt::broadcast<N>(-INFINITY);
    for (int i = lane * N; i < V_whole; i += step) {
        const Vec<float, N> v = load<N>(kept + i);
        UNROLL
        for (int k = 0; k < N; k++) highest[k] = simt::larger(v[k], highest[k]);
    }
    softmax.maximum = max(softmax.maximum, simt::max(highest));
    for (int i = lane * N; i < V_whole; i += step) {
        const Vec<float, N> v = load<N>(kept + i);
        UNROLL
        for (int k = 0; k < N; k++) softmax.sums[k] += simt::quick_exp_nonpositive(v[k] - softmax.maximum);
    }
    if (tail.exists) softmax.add(tail.logit);
    return softmax;
}

// logits (N, Vp) = their gradient, losses (N) = the losses. W::threads threads share a row.
template <class W, int N, class T>
__global__ void __launch_bounds__(W::threads, W::threads <= 512 ? 2 : 1)
    cross_entropy_gradient_kernel(T* logits, float* losses, const int* targets, float dloss, size_t rows,
                                  int V, int Vp) {
    constexpr int threads = W::threads, step = threads * N;
    const int lane = static_cast<int>(threadIdx.x), V_whole = V / N * N;
    simt::SharedMemory shared;
    T* const kept = shared.take<T>(V_whole);
    const auto copy = [&](int i, size_t row)
                          INLINE { simt::cp_async<N>(kept + i, logits + row * Vp + i, row < rows); };
    for (int i = lane * N; i < V_whole; i += step) copy(i, blockIdx.x);
    simt::cp_async_commit();

    int next_target = targets[blockIdx.x];
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const size_t next = row + gridDim.x;
        const int target = next_target;
        const bool counts = target >= 0;  // the same for all threads of the block
        T* const x = logits + row * Vp;
        // The values of these loads are needed late, so the loads overlap the passes over shared memory.
        if (next < rows) next_target = targets[next];
        const float at_target = counts ? static_cast<float>(x[target]) : 0.0f;
        const bool has_tail = V_whole + lane < V;
        const RowTail tail{has_tail, has_tail ? static_cast<float>(x[V_whole + lane]) : 0.0f};
        simt::cp_async_wait<0>();

        // The row becomes gradient(logits), and the copy of the next row begins.
        const auto replace = [&](auto gradient) INLINE {
            for (int i = lane * N; i < V_whole; i += step) {
                Vec<float, N> v = load<N>(kept + i);
                copy(i, next);
                UNROLL
                for (int k = 0; k < N; k++) v[k] = gradient(v[k]);
                store(x + i, v);
            }
            simt::cp_async_commit();
            for (int i = V_whole + lane; i < Vp; i += threads) x[i] = T(i < V ? gradient(tail.logit) : 0.0f);
        };
        if (!counts) {
            if (lane == 0) losses[row] = 0.0f;
            replace([](float) INLINE { return 0.0f; });
            continue;
        }
        OnlineSoftmax<N> softmax = softmax_in_shared<N, step>(kept, V_whole, lane, tail);
        const float row_sum = softmax.template row_sum<threads>();
        if (lane == 0) losses[row] = simt::log(row_sum) + (softmax.maximum - at_target);
        const float scale = dloss / row_sum;
        const auto gradient = [&](float v)
                                  INLINE { return simt::quick_exp_nonpositive(v - softmax.maximum) * scale; };
        replace(gradient);
        __syncthreads();  // another thread has written the target's column
        if (lane == 0) x[target] = T(gradient(at_target) - dloss);
    }
}
