// gemm_unfused.h: our own kernels for what the libraries do not fuse into a product, at this machine's
//   width, for host code
//   The arguments are those of gelu.cuh and column_sum.cuh.
#pragma once
#include <cstddef>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"

template <class T>
void gemm_gelu_forward(T* out, const T* pre_gelu, size_t count, stream_t stream);
template <class T>
void gemm_gelu_backward(T* dpre_gelu, const T* dgelu, const T* pre_gelu, size_t count, stream_t stream);

// out (N, OC) += bias (OC)
template <class T>
void gemm_add_bias(T* out, const T* bias, size_t N, size_t OC, stream_t stream);

// dbias (OC) += column sums of dout (N, OC)
template <class T>
void gemm_bias_gradient(float* dbias, const T* dout, size_t N, size_t OC, void* scratch, stream_t stream);
template <class T>
size_t gemm_bias_gradient_scratch_bytes(size_t N, size_t OC);
// dbias (OC) += the column sums (OC) that a product's epilogue has written
void gemm_add_bias_gradient(float* dbias, const float* fused, size_t OC, stream_t stream);
