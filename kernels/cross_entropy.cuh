// cross_entropy.cuh: the classifier's softmax, loss and gradient in one kernel, in place
//   logits (N, Vp), of which the first V columns count   targets (N), -1 = ignored
//   losses (N) fp32, natural log
//   loss = log(sum exp(logits)) - logits[target]
//   dlogits = (softmax - onehot(target)) * dloss, 0 in the padded columns and in ignored rows
//   Where gradients are wanted and a row fits into a GPU's shared memory, the kernel of
//   cross_entropy_gradient.cuh computes the same.
#pragma once
#include <algorithm>

#include "kernels/common.cuh"
#include "kernels/cross_entropy_gradient.cuh"
#include "kernels/online_softmax.cuh"

// Vectors that a thread handles together: it finds their maximum and then adds up their exponentials, so that
// the running sum is rescaled seldom. A GPU has four in registers. The CPU takes 1024 logits, which
// stay in the first-level cache, so that the row is read from memory once.
template <class W, int N>
constexpr int cross_entropy_batch = W::threads == 1 ? 1024 / N : 4;

// This thread's share of the softmax of a row of V logits.
template <class W, int N, class T>
__device__ __forceinline__ OnlineSoftmax<N> softmax_of_row(const T* x, int V, int lane) {
    constexpr int threads = W::threads, step = threads * N, batch = cross_entropy_batch<W, N>;
    const int V_whole = V / N * N;  // the end of the last whole vector
    OnlineSoftmax<N> softmax;
    for (int begin = lane * N; begin < V_whole; begin += batch * step) {
        const int vectors = threads > 1 ? batch : min(batch, (V_whole - begin) / N);
        [[maybe_unused]] Vec<T, N> held[threads > 1 ? batch : 1];
        if constexpr (threads > 1) {
            UNROLL
            for (int v = 0; v < batch; v++) {
                simt::one_at_a_time();
                if (begin + v * step < V_whole) held[v] = load_raw<N>(x + begin + v * step);
            }
        }
        const auto vector = [&](int v) INLINE {
            if constexpr (threads > 1) return widen(held[v]);
            else return load<N>(x + begin + v * N);
        };
        Vec<float, N> highest = simt::broadcast<N>(-INFINITY);
        UNROLL
        for (int v = 0; v < vectors; v++) {
            if (threads > 1 && begin + v * step >= V_whole) continue;
            const Vec<float, N> values = vector(v);
            UNROLL
            for (int k = 0; k < N; k++) highest[k] = simt::larger(values[k], highest[k]);
        }
        softmax.raise_maximum(simt::max(highest));
        UNROLL
        for (int v = 0; v < vectors; v++) {
            if (threads > 1 && begin + v * step >= V_whole) continue;
            const Vec<float, N> values = vector(v);
            UNROLL
            for (int k = 0; k < N; k++)
                softmax.sums[k] += simt::quick_exp_nonpositive(values[k] - softmax.maximum);
        }
    }
    for (int i = V_whole + lane; i < V; i += threads) softmax.add(static_cast<float>(x[i]));
    return softmax;
}

// The first V columns of a row become function(logit), the padded ones 0; afterwards the block's threads may
// write to each other's columns.
template <int threads, int N, class T, class Function>
__device__ __forceinline__ void replace_row(T* x, int V, int Vp, Function function) {
    const int lane = static_cast<int>(threadIdx.x), V_whole = V / N * N;
    for (int i = lane * N; i < V_whole; i += threads * N) {
        Vec<float, N> v = load<N>(x + i);
        UNROLL
        for (int k = 0; k < N; k++) v[k] = function(v[k]);
        store(x + i, v);
    }
    for (int i = V_whole + lane; i < Vp; i += threads)
        x[i] = T(i < V ? function(static_cast<float>(x[i])) : 0.0f);
    simt::row_barrier<threads>();
}

// W::threads threads share a row. It is read once for the sums and once more for the gradient: on the CPU
// from its cache, on a GPU from L2 if it is still there. The CPU uses this kernel. A GPU uses it for losses
// without gradients and for rows that do not fit into shared memory.
template <class W, int N, class T>
__global__ void __launch_bounds__(simt::block_of<W>, simt::block_of<W> <= 512 ? 2 : 1)
    cross_entropy_kernel(T* logits, float* losses, const int* targets, float dloss, int V, int Vp,
                         bool write_dlogits) {
    constexpr int threads = W::threads, step = threads * N;
    const size_t row = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x), target = targets[row];
    T* x = logits + row * Vp;
    if (target < 0) {
        if (lane == 0) losses[row] = 0.0f;
        for (int i = lane * N; write_dlogits && i < Vp; i += step) store(x + i, simt::broadcast<N>(0.0f));
        return;  // the same for all threads of the block
    }
    const float at_target = static_cast<float>(x[target]);
    OnlineSoftmax<N> softmax = softmax_of_row<W, N>(x, V, lane);
    const float row_sum = softmax.template row_sum<threads>();
    if (lane == 0) losses[row] = simt::log(row_sum) + (softmax.maximum - at_target);

    if (write_dlogits) {
        const float scale = dloss / row_sum;
        const auto gradient = [&](float v)
                                  INLINE { return simt::quick_exp_nonpositive(v - softmax.maximum) * scale; };
        replace_row<threads, N>(x, V, Vp, gradient);
        if (lane == 0) x[target] = T(gradient(at_target) - dloss);
    }
}

inline void check_classifier(size_t N, int V, int Vp) {
    CHECK(N > 0 && V > 0 && V <= Vp,
          "cross-entropy: N = {} and V = {} must be positive, and V at most Vp = {}", N, V, Vp);
}

// With write_dlogits, logits (N, Vp) = their gradient; without it, they stay as they are.
// Reads N*V and writes N*Vp elements; bound by memory bandwidth on the GPU, by exponentials on the CPU.
template <class W = simt::NativeWidth<512>, class T>
void cross_entropy_forward_backward(T* logits, float* losses, const int* targets, float dloss, size_t N,
                                    int V, int Vp, bool write_dlogits, stream_t stream) {
    check_classifier(N, V, Vp);
    simt::for_vector_length<W, T>(Vp, [&](auto n) {
        if constexpr (W::threads > 1 && n() > 1) {
            if (write_dlogits && keeps_row<n(), T>(V, simt::available_shared_bytes())) {
                const size_t blocks = std::min<size_t>(N, 2 * simt::multiprocessors());
                return launch(cross_entropy_gradient_kernel<W, n(), T>, static_cast<unsigned>(blocks),
                              W::threads, kept_row_bytes<n(), T>(V), stream, logits, losses, targets, dloss,
                              N, V, Vp);
            }
        }
        launch(cross_entropy_kernel<W, n(), T>, static_cast<unsigned>(N), W::threads, 0, stream, logits,
               losses, targets, dloss, V, Vp, write_dlogits);
    });
}

// One block adds everything. Each thread adds its share in double precision, because a sum of 65536 losses
// in fp32 would lose digits that the tests of gradient accumulation compare.
template <class W>
__global__ void __launch_bounds__(simt::block_of<W>)
    sum_losses_kernel(float* total, const float* losses, size_t N, bool accumulate) {
    constexpr size_t threads = W::threads, lanes = W::threads == 1 ? 16 : 1;
    double sums[lanes] = {};
    size_t i = threadIdx.x * lanes;
    for (; i + lanes <= N; i += threads * lanes) {
        UNROLL
        for (size_t k = 0; k < lanes; k++) sums[k] += losses[i + k];
    }
    for (; i < N; i++) sums[0] += losses[i];
    for (size_t k = 1; k < lanes; k++) sums[0] += sums[k];
    const float sum = simt::row_sum<threads>(static_cast<float>(sums[0]));
    if (threadIdx.x == 0) *total = accumulate ? *total + sum : sum;
}

// total (1) = (or +=, if accumulate) the sum of N losses, always in the same order.
template <class W = simt::NativeWidth<1024>>
void sum_losses(float* total, const float* losses, size_t N, bool accumulate, stream_t stream) {
    launch(sum_losses_kernel<W>, 1, W::threads, 0, stream, total, losses, N, accumulate);
}
