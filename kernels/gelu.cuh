// gelu.cuh: the tanh approximation of GELU, as GPT-2 uses it, element by element
//   gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u),   u = sqrt(2/pi) (x + 0.044715 x^3)
//   The second form has no cancellation for negative x, and needs one exponential instead of tanh.
//   Hendrycks and Gimpel 2016, arXiv:1606.08415
#pragma once
#include "kernels/elementwise.cuh"

constexpr float gelu_scale = 0.7978845608028654f;  // sqrt(2/pi)
constexpr float gelu_cubic = 0.044715f;

// Both s = sigmoid(2u) and 1 - s follow from e = exp(-|2u|) without cancellation, and nothing overflows.
__device__ __forceinline__ float gelu(float x) {
    const float u = gelu_scale * (x + gelu_cubic * x * x * x);
    const float e = simt::quick_exp_nonpositive(-2.0f * fabsf(u));
    return simt::quick_divide(x * (u < 0.0f ? e : 1.0f), 1.0f + e);
}

// gelu'(x) = s + x s (1 - s) 2u'
__device__ __forceinline__ float gelu_derivative(float x) {
    const float u = gelu_scale * (x + gelu_cubic * x * x * x);
    const float du = gelu_scale * (1.0f + 3.0f * gelu_cubic * x * x);
    const float e = simt::quick_exp_nonpositive(-2.0f * fabsf(u));
    const float inverse = simt::quick_divide(1.0f, 1.0f + e);
    return simt::fused_multiply_add(x * (e * inverse * inverse), 2.0f * du, (u < 0.0f ? e : 1.0f) * inverse);
}

template <class W, int N, class T>
__global__ void gelu_forward_kernel(T* out, const T* inp, size_t n) {
    map_vectors<W, N>(out, inp, n, []<int M>(Vec<float, M>& x) INLINE {
        UNROLL
        for (int k = 0; k < M; k++) x[k] = gelu(x[k]);
    });
}

template <class W, int N, class T>
__global__ void gelu_backward_kernel(T* dinp, const T* dout, const T* inp, size_t n) {
    for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
        const Vec<float, M> x = load<M>(inp + i);
        Vec<float, M> d = load<M>(dout + i);
        UNROLL
        for (int k = 0; k < M; k++) d[k] *= gelu_derivative(x[k]);
        store(dinp + i, d);
    });
}

// out (n) = gelu(inp (n)). Reads n and writes n elements; bound by memory bandwidth (on the CPU in bf16
// by the exponential).
template <class W = simt::NativeWidth<32>, class T>
void gelu_forward(T* out, const T* inp, size_t n, stream_t stream) {
    launch_elementwise<W, T, mapped_vectors<W>>(
        n, stream, [](auto N) { return gelu_forward_kernel<W, N(), T>; }, out, inp, n);
}

// dinp (n) = dout * gelu'(inp); dinp may be dout. Reads 2n and writes n elements; bound like gelu_forward.
template <class W = simt::NativeWidth<32>, class T>
void gelu_backward(T* dinp, const T* dout, const T* inp, size_t n, stream_t stream) {
    launch_elementwise<W, T>(
        n, stream, [](auto N) { return gelu_backward_kernel<W, N(), T>; }, dinp, dout, inp, n);
}
