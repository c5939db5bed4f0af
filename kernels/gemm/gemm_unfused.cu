// gemm_unfused.cu: the activations, column_sum.cuh, add_rows.cuh and dequantize compiled for the two types,
//   and out += bias
#include "kernels/add_rows.cuh"
#include "kernels/column_sum.cuh"
#include "kernels/gelu.cuh"
#include "kernels/gemm/gemm_unfused.h"
#include "kernels/quantize.cuh"

namespace {

template <class W, int N_, class T>
__global__ void add_bias_kernel(T* out, const T* bias, size_t rows, int OC) {
    const size_t row = simt::row_index<W::threads>();
    if (row >= rows) return;
    for (int i = simt::row_lane<W::threads>() * N_; i < OC; i += W::threads * N_) {
        Vec<float, N_> x = load<N_>(out + row * OC + i);
        const Vec<float, N_> b = load<N_>(bias + i);
        UNROLL
        for (int k = 0; k < N_; k++) x[k] += b[k];
        store<N_>(out + row * OC + i, x);
    }
}

}  // namespace

// Reads and writes N*OC elements; bound by memory bandwidth.
template <class T>
void gemm_add_bias(T* out, const T* bias, size_t N, size_t OC, stream_t stream) {
    using W = simt::NativeWidth<32>;
    simt::for_vector_length<W, T>(OC, [&](auto n) {
        launch_rows<W::threads>(add_bias_kernel<W, n(), T>, N, 0, stream, out, bias, N, static_cast<int>(OC));
    });
}

template <class T>
void gemm_activation_forward(Activation activation, T* out, const T* inp, size_t n, stream_t stream) {
    switch (activation) {
        case Activation::none: break;
        case Activation::gelu: return gelu_forward(out, inp, n, stream);
    }
}

template <class T>
void gemm_activation_backward(Activation activation, T* dinp, const T* dout, const T* inp, size_t n,
                              stream_t stream) {
    switch (activation) {
        case Activation::none: break;
        case Activation::gelu: return gelu_backward(dinp, dout, inp, n, stream);
    }
}

template <class T>
void gemm_dequantize(T* out, const int8_t* weight, const float* scales, size_t OC, size_t C,
                     stream_t stream) {
    dequantize(out, weight, scales, OC, static_cast<int>(C), stream);
}

template <class T>
void gemm_bias_gradient(float* dbias, const T* dout, size_t N, size_t OC, void* scratch, stream_t stream) {
    column_sum(dbias, dout, N, OC, static_cast<float*>(scratch), stream);
}

void gemm_add_bias_gradient(float* dbias, const float* fused, size_t OC, stream_t stream) {
    add_rows({dbias}, fused, 1, OC, stream);
}

template <class T>
size_t gemm_bias_gradient_scratch_bytes(size_t N, size_t OC) {
    return column_sum_scratch_bytes<simt::NativeWidth<32>, T>(N, OC);
}

template void gemm_add_bias(float*, const float*, size_t, size_t, stream_t);
template void gemm_add_bias(bfloat16*, const bfloat16*, size_t, size_t, stream_t);
template void gemm_dequantize(float*, const int8_t*, const float*, size_t, size_t, stream_t);
template void gemm_dequantize(bfloat16*, const int8_t*, const float*, size_t, size_t, stream_t);
template void gemm_activation_forward(Activation, float*, const float*, size_t, stream_t);
template void gemm_activation_forward(Activation, bfloat16*, const bfloat16*, size_t, stream_t);
template void gemm_activation_backward(Activation, float*, const float*, const float*, size_t, stream_t);
template void gemm_activation_backward(Activation, bfloat16*, const bfloat16*, const bfloat16*, size_t,
                                       stream_t);
template void gemm_bias_gradient(float*, const float*, size_t, size_t, void*, stream_t);
template void gemm_bias_gradient(float*, const bfloat16*, size_t, size_t, void*, stream_t);
template size_t gemm_bias_gradient_scratch_bytes<float>(size_t, size_t);
template size_t gemm_bias_gradient_scratch_bytes<bfloat16>(size_t, size_t);
