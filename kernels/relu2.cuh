// relu2.cuh: act = max(x, 0)^2, in place
//   Backward needs act alone. In fp32 its root is max(x, 0) exactly, because the root of a rounded square of
//   a binary number is that number again; in bf16 it is as close as the rounding of act to 8 bits.
//     dx = 2 max(x, 0) dact = 2 sqrt(act) dact
//   So et al. 2021, arXiv:2109.08668
#pragma once
#include "kernels/elementwise.cuh"

template <class W, int N, class T>
__global__ void relu2_forward_kernel(T* x, size_t n) {
    map_vectors<W, N>(x, x, n, []<int M>(Vec<float, M>& v) INLINE {
        UNROLL
        for (int k = 0; k < M; k++) v[k] = v[k] < 0.0f ? 0.0f : v[k] * v[k];  // a NaN stays one
    });
}

template <class W, int N, class T>
__global__ void relu2_backward_kernel(T* dinp, const T* dact, const T* act, size_t n) {
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        const Vec<float, M> a = load<M>(act + i);
        Vec<float, M> d = load<M>(dact + i);
        UNROLL
        for (int k = 0; k < M; k++) d[k] *= 2.0f * simt::sqrt(a[k]);
        store(dinp + i, d);
    });
}

// x (n) = max(x, 0)^2. Reads and writes n elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void relu2_forward(T* x, size_t n, stream_t stream) {
    launch_elementwise<W, T, mapped_vectors<W>>(
        n, stream, [](auto N) { return relu2_forward_kernel<W, N(), T>; }, x, n);
}

// dinp (n) = 2 sqrt(act) dact; dinp may be dact. Reads 2n and writes n elements; bound by memory bandwidth.
template <class W = simt::NativeWidth<32>, class T>
void relu2_backward(T* dinp, const T* dact, const T* act, size_t n, stream_t stream) {
    launch_elementwise<W, T>(
        n, stream, [](auto N) { return relu2_backward_kernel<W, N(), T>; }, dinp, dact, act, n);
}
