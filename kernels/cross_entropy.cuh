// cross_entropy.cuh: the classifier's softmax, loss and gradient in one kernel, in place
//   logits (N, Vp), of which the first V columns count   targets (N), -1 = ignored   losses (N) fp32, natural log
//   loss = log(sum exp(logits)) - logits[target],   dlogits = (softmax - onehot(target)) * dloss, 0 in the padded columns and in ignored rows
//   Maximum and sum are found in one reading of the row (Milakov and Gimelshein 2018, arXiv:1805.02867).
#pragma once
#include <cfloat>

#include "common.cuh"

// Vectors that a thread looks at together: it finds their maximum, then adds up their exponentials, so that the running sum is rescaled seldom.
// GPU: four, in registers. A block of 512 threads has 32 KB on their way, and two blocks share an SM: while one waits at a reduction the other reads.
// That is enough for 37 bytes a cycle after 800 cycles of latency, where an SM's share of an H200's memory is 21.
// CPU: what fits the first-level cache, so that the row comes from memory once.
template <class W, int N>
constexpr int cross_entropy_batch = W::threads == 1 ? 1024 / N : 4;

// W::threads share a row. Kept: shared memory holds the row between its two readings, so that neither memory nor L2 sees the second one.
//   An element costs 14 instructions of the 24 that an SM has for it at the speed of an H200's memory (4 bytes, read and written once).
template <class W, int N, class T, bool Kept>
__global__ void __launch_bounds__(simt::block_of<W>, simt::block_of<W> <= 512 ? 2 : 1)
    cross_entropy_kernel(T* logits, float* losses, const int* targets, float dloss, int V, int Vp, bool write_dlogits) {
    constexpr int threads = W::threads, step = threads * N, batch = cross_entropy_batch<W, N>;
    const size_t row = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x), target = targets[row];
    T* x = logits + row * Vp;
    if (target < 0) {
        if (lane == 0) losses[row] = 0.0f;
        for (int i = lane * N; write_dlogits && i < Vp; i += step) store(x + i, simt::broadcast<N>(0.0f));
        return;  // the whole block agrees
    }
    const float at_target = static_cast<float>(x[target]);
    const int V_whole = V / N * N;  // the end of the last whole vector
    T* again = x;                   // where the row is read again
    if constexpr (Kept) {
        simt::SharedMemory shared;
        again = shared.take<T>(V_whole);  // a thread reads what it wrote itself: no barrier
    }

    // This thread's maximum and its sum of exp(x - maximum). The maximum starts finite: logits of -inf count as 0, not as NaN.
    float maximum = -FLT_MAX;
    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    const auto raise_maximum = [&](float candidate) {
        if (!(candidate > maximum)) return;
        const float factor = simt::quick_exp_nonpositive(maximum - candidate);
        UNROLL
        for (int k = 0; k < N; k++) sums[k] *= factor;
        maximum = candidate;
    };
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
        if constexpr (Kept) {
            UNROLL
            for (int v = 0; v < batch; v++) {
                if (begin + v * step < V_whole) store_raw(again + begin + v * step, held[v]);
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
        raise_maximum(simt::max(highest));
        UNROLL
        for (int v = 0; v < vectors; v++) {
            if (threads > 1 && begin + v * step >= V_whole) continue;
            const Vec<float, N> values = vector(v);
            UNROLL
            for (int k = 0; k < N; k++) sums[k] += simt::quick_exp_nonpositive(values[k] - maximum);
        }
    }
    for (int i = V_whole + lane; i < V; i += threads) {
        const float v = static_cast<float>(x[i]);
        raise_maximum(v);
        sums[0] += simt::quick_exp_nonpositive(v - maximum);
    }
    const float row_maximum = simt::row_max<threads>(maximum);
    const float row_sum = simt::row_sum<threads>(simt::sum(sums) * simt::quick_exp_nonpositive(maximum - row_maximum));
    if (lane == 0) losses[row] = simt::log(row_sum) + (row_maximum - at_target);

    if (write_dlogits) {
        const float scale = dloss / row_sum;
        const auto gradient = [&](float v) INLINE { return simt::quick_exp_nonpositive(v - row_maximum) * scale; };
        for (int i = lane * N; i < V_whole; i += step) {
            Vec<float, N> v = load<N>(again + i);
            UNROLL
            for (int k = 0; k < N; k++) v[k] = gradient(v[k]);
            store(x + i, v);
        }
        for (int i = V_whole + lane; i < Vp; i += threads) x[i] = T(i < V ? gradient(static_cast<float>(x[i])) : 0.0f);
        simt::row_barrier<threads>();  // another thread has written the target's column
        if (lane == 0) x[target] = T(gradient(at_target) - dloss);
    }
}

// With write_dlogits, logits (N, Vp) = their gradient; without, they are left as they are.
// Reads N*V and writes N*Vp elements; bound by memory bandwidth on the GPU, by exponentials on the CPU. On the GPU a row longer than shared memory
// is read again, from L2 if it is still there.
template <class W = simt::NativeWidth<512>, class T>
void cross_entropy_forward_backward(T* logits, float* losses, const int* targets, float dloss, size_t N, int V, int Vp, bool write_dlogits,
                                    stream_t stream) {
    CHECK(N > 0 && V > 0 && V <= Vp, "cross-entropy: N = {} and V = {} must be positive, and V at most Vp = {}", N, V, Vp);
    simt::for_vector_length<W, T>(Vp, [&](auto n) {
        const auto start = [&](auto kernel, size_t shared) {
            launch(kernel, static_cast<unsigned>(N), W::threads, shared, stream, logits, losses, targets, dloss, V, Vp, write_dlogits);
        };
        if constexpr (W::threads > 1 && n() > 1) {
            const size_t row = simt::shared_size<T>(V / n() * n());
            if (write_dlogits && row > 0 && row <= simt::available_shared_bytes()) return start(cross_entropy_kernel<W, n(), T, true>, row);
        }
        start(cross_entropy_kernel<W, n(), T, false>, 0);
    });
}

// One block adds everything: in double precision, because a sum of 65536 losses in fp32 would lose digits that the tests of accumulation look at.
template <class W>
__global__ void __launch_bounds__(simt::block_of<W>) sum_losses_kernel(float* total, const float* losses, size_t N, bool accumulate) {
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
