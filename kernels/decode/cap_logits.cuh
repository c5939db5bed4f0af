// cap_logits.cuh: logits = cap tanh(logits / cap), in place, for whoever draws a token from them
//   Training caps them in its classifier, kernels/capped_cross_entropy.cuh.
#pragma once
#include "kernels/elementwise.cuh"
#include "kernels/sigmoids.cuh"

template <class W, int N, class T>
__global__ void cap_logits_kernel(T* out, const T* inp, size_t n, float cap) {
    map_vectors<W, N>(out, inp, n, [=]<int M>(Vec<float, M>& z) INLINE {
        UNROLL
        for (int k = 0; k < M; k++) {
            const Sigmoids q(-2.0f / cap * z[k]);
            z[k] = cap * (q.rest - q.value);
        }
    });
}

// logits (n). Bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void cap_logits(T* logits, size_t n, float cap, stream_t stream) {
    launch_elementwise<W, T, mapped_vectors<W>>(
        n, stream, [](auto N) { return cap_logits_kernel<W, N(), T>; }, logits, static_cast<const T*>(logits),
        n, cap);
}
