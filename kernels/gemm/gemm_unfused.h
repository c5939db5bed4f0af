// gemm_unfused.h: our own kernels for what the libraries do not fuse into a product, at this machine's
//   width, for host code
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"

// out (n) = activation(inp (n)), and its gradient dinp (n) = dout * activation'(inp); dinp may be dout.
// activation is not none.
template <class T>
void gemm_activation_forward(Activation activation, T* out, const T* inp, size_t n, stream_t stream);
template <class T>
void gemm_activation_backward(Activation activation, T* dinp, const T* dout, const T* inp, size_t n,
                              stream_t stream);

// out (N, OC) += bias (OC)
template <class T>
void gemm_add_bias(T* out, const T* bias, size_t N, size_t OC, stream_t stream);

// out (OC, C) = weight * the scales (OC) of its rows (quantize.cuh)
template <class T>
void gemm_dequantize(T* out, const int8_t* weight, const float* scales, size_t OC, size_t C, stream_t stream);

// dbias (OC) += column sums of dout (N, OC)
template <class T>
void gemm_bias_gradient(float* dbias, const T* dout, size_t N, size_t OC, void* scratch, stream_t stream);
template <class T>
size_t gemm_bias_gradient_scratch_bytes(size_t N, size_t OC);
// dbias (OC) += the column sums (OC) that a product's epilogue has written
void gemm_add_bias_gradient(float* dbias, const float* fused, size_t OC, stream_t stream);
