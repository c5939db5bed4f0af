// cross_entropy.cuh: the classifier's softmax, loss and gradient in one kernel, in place
//   logits (N, Vp), of which the first V columns count   targets (N), -1 = ignored   losses (N) fp32, natural log
//   loss = log(sum exp(logits)) - logits[target],   dlogits = (softmax - onehot(target)) * dloss, 0 in the padded columns and in ignored rows
//   Maximum and sum are found in one reading of the row (Milakov and Gimelshein 2018, arXiv:1805.02867).
#pragma once
#include <cfloat>

#include "common.cuh"

// Columns that a thread looks at together: it finds their maximum, then adds up their exponentials. GPU: a vector, in registers.
// CPU: what fits the first-level cache, so that the row comes from memory once and the running sum is rescaled seldom.
template <class W, int N>
constexpr int cross_entropy_chunk = W::threads == 1 ? 1024 : N;

// W::threads share a row.
template <class W, int N, class T>
__global__ void __launch_bounds__(simt::block_of<W>)
    cross_entropy_kernel(T* logits, float* losses, const int* targets, float dloss, int V, int Vp, bool write_dlogits) {
    constexpr int threads = W::threads, chunk = cross_entropy_chunk<W, N>;
    const size_t row = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x), target = targets[row];
    T* x = logits + row * Vp;
    if (target < 0) {
        if (lane == 0) losses[row] = 0.0f;
        for (int i = lane * N; write_dlogits && i < Vp; i += threads * N) store(x + i, simt::broadcast<N>(0.0f));
        return;  // the whole block agrees
    }
    const float at_target = static_cast<float>(x[target]);
    const int V_whole = V / N * N;  // the end of the last whole vector

    // This thread's maximum and its sum of exp(x - maximum). The maximum starts finite: logits of -inf count as 0, not as NaN.
    float maximum = -FLT_MAX;
    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    const auto raise_maximum = [&](float candidate) {
        if (!(candidate > maximum)) return;
        const float factor = simt::exp_nonpositive(maximum - candidate);
        UNROLL
        for (int k = 0; k < N; k++) sums[k] *= factor;
        maximum = candidate;
    };
    for (int begin = lane * chunk; begin < V_whole; begin += threads * chunk) {
        const int end = V_whole < begin + chunk ? V_whole : begin + chunk;
        Vec<float, N> highest = load<N>(x + begin);
        for (int i = begin + N; i < end; i += N) {
            const Vec<float, N> v = load<N>(x + i);
            UNROLL
            for (int k = 0; k < N; k++) highest[k] = v[k] > highest[k] ? v[k] : highest[k];
        }
        raise_maximum(simt::max(highest));
        for (int i = begin; i < end; i += N) {
            const Vec<float, N> v = load<N>(x + i);
            UNROLL
            for (int k = 0; k < N; k++) sums[k] += simt::exp_nonpositive(v[k] - maximum);
        }
    }
    for (int i = V_whole + lane; i < V; i += threads) {
        const float v = static_cast<float>(x[i]);
        raise_maximum(v);
        sums[0] += simt::exp_nonpositive(v - maximum);
    }
    const float row_maximum = simt::row_max<threads>(maximum);
    const float row_sum = simt::row_sum<threads>(simt::sum(sums) * simt::exp_nonpositive(maximum - row_maximum));
    if (lane == 0) losses[row] = simt::log(row_sum) + (row_maximum - at_target);

    if (write_dlogits) {
        const float scale = dloss / row_sum;
        const auto gradient = [&](float v, int column) { return simt::exp_nonpositive(v - row_maximum) * scale - (column == target ? dloss : 0.0f); };
        for (int i = lane * N; i < V_whole; i += threads * N) {
            Vec<float, N> v = load<N>(x + i);
            UNROLL
            for (int k = 0; k < N; k++) v[k] = gradient(v[k], i + k);
            store(x + i, v);
        }
        for (int i = V_whole + lane; i < Vp; i += threads) x[i] = T(i < V ? gradient(static_cast<float>(x[i]), i) : 0.0f);
    }
}

// With write_dlogits, logits (N, Vp) = their gradient; without, they are left as they are.
// Reads N*V and writes N*Vp elements (the row is read again from the cache); bound by memory bandwidth on the GPU, by exponentials on the CPU.
template <class W = simt::NativeWidth<1024>, class T>
void cross_entropy_forward_backward(T* logits, float* losses, const int* targets, float dloss, size_t N, int V, int Vp, bool write_dlogits,
                                    stream_t stream) {
    CHECK(N > 0 && V > 0 && V <= Vp, "cross-entropy: N = {} and V = {} must be positive, and V at most Vp = {}", N, V, Vp);
    simt::for_vector_length<W, T>(Vp, [&](auto n) {
        launch(cross_entropy_kernel<W, n(), T>, static_cast<unsigned>(N), W::threads, 0, stream, logits, losses, targets, dloss, V, Vp,
               write_dlogits);
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
