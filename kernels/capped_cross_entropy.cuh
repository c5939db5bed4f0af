// capped_cross_entropy.cuh: the classifier of capped logits, c = cap tanh(z / cap), in place
//   logits z (N, Vp), of which the first V columns count   targets (N), -1 = ignored   losses (N) fp32
//   With q = sigmoid(-2 z / cap), neither of these cancels:
//     c - cap = -2 cap q,   1 - (c / cap)^2 = 4 q (1 - q)
//   and so
//     loss = log(sum exp(c)) - c[target] = log(sum exp(-2 cap q)) + 2 cap q[target]
//     dz = (softmax(c) - onehot(target)) * 4 q (1 - q) * dloss, 0 in the padded columns and in ignored rows
//   No logit exceeds the cap, so that it takes the place of a row's maximum, and one pass finds the sum. With
//   a cap of at most most_logit_cap not even a row of lowest logits underflows.
//   Bello et al. 2016, arXiv:1611.09940
#pragma once
#include "kernels/cross_entropy.cuh"
#include "kernels/elementwise.cuh"

constexpr float most_logit_cap = 40;  // exp(-2 * 40) is 1.8e-35

// W::threads threads share a row, and read it twice.
template <class W, int N, class T>
__global__ void __launch_bounds__(simt::block_of<W>)
    capped_cross_entropy_kernel(T* logits, float* losses, const int* targets, float dloss, float cap, int V,
                                int Vp, bool write_dlogits) {
    constexpr int threads = W::threads, step = threads * N;
    const size_t row = blockIdx.x;
    const int lane = static_cast<int>(threadIdx.x), target = targets[row], V_whole = V / N * N;
    const float slope = -2.0f / cap, depth = -2.0f * cap;
    T* const x = logits + row * Vp;
    if (target < 0) {
        if (lane == 0) losses[row] = 0.0f;
        for (int i = lane * N; write_dlogits && i < Vp; i += step) store(x + i, simt::broadcast<N>(0.0f));
        return;  // the same for all threads of the block
    }
    const Sigmoids at_target(slope * static_cast<float>(x[target]));
    const auto weight = [&](float z)
                            INLINE { return simt::quick_exp_nonpositive(depth * Sigmoids(slope * z).value); };
    Vec<float, N> sums = simt::broadcast<N>(0.0f);
    for (int i = lane * N; i < V_whole; i += step) {
        const Vec<float, N> z = load<N>(x + i);
        UNROLL
        for (int k = 0; k < N; k++) sums[k] += weight(z[k]);
    }
    for (int i = V_whole + lane; i < V; i += threads) sums[0] += weight(static_cast<float>(x[i]));
    const float row_sum = simt::row_sum<threads>(simt::sum(sums));
    if (lane == 0) losses[row] = simt::log(row_sum) - depth * at_target.value;

    if (write_dlogits) {
        const float scale = dloss / row_sum;
        const auto gradient = [&](Sigmoids q, float less) INLINE {
            return (simt::quick_exp_nonpositive(depth * q.value) * scale - less) * (4.0f * q.value * q.rest);
        };
        replace_row<threads, N>(x, V, Vp,
                                [&](float z) INLINE { return gradient(Sigmoids(slope * z), 0.0f); });
        if (lane == 0) x[target] = T(gradient(at_target, dloss));
    }
}

// The classifier of logits that are capped, unless cap is 0. With write_dlogits, logits (N, Vp) = the
// gradient of what they were; without it, they stay as they are. Reads N*V and writes N*Vp elements; bound by
// memory bandwidth on the GPU, by exponentials on the CPU.
template <class W = simt::NativeWidth<512>, class T>
void classify(T* logits, float* losses, const int* targets, float dloss, float cap, size_t N, int V, int Vp,
              bool write_dlogits, stream_t stream) {
    if (cap == 0)
        return cross_entropy_forward_backward(logits, losses, targets, dloss, N, V, Vp, write_dlogits,
                                              stream);
    check_classifier(N, V, Vp);
    CHECK(cap > 0 && cap <= most_logit_cap, "cross-entropy: a cap of {}; expected a positive number up to {}",
          cap, most_logit_cap);
    simt::for_vector_length<W, T>(Vp, [&](auto n) {
        launch(capped_cross_entropy_kernel<W, n(), T>, static_cast<unsigned>(N), W::threads, 0, stream,
               logits, losses, targets, dloss, cap, V, Vp, write_dlogits);
    });
}

template <class W, int N, class T>
__global__ void cap_logits_kernel(T* logits, size_t n, float cap) {
    map_vectors<W, N>(logits, logits, n, [=]<int M>(Vec<float, M>& z) INLINE {
        UNROLL
        for (int k = 0; k < M; k++) {
            const Sigmoids q(-2.0f / cap * z[k]);
            z[k] = cap * (q.rest - q.value);
        }
    });
}

// logits (n) = cap tanh(logits / cap), in place, for whoever draws a token. Bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void cap_logits(T* logits, size_t n, float cap, stream_t stream) {
    launch_elementwise<W, T, mapped_vectors<W>>(
        n, stream, [](auto N) { return cap_logits_kernel<W, N(), T>; }, logits, n, cap);
}
