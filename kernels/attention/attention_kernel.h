// attention_kernel.h: our own flash attention (attention.cuh) at this machine's width, for host code
//   The arguments are those of attention.h.
#pragma once
#include "kernels/attention/attention.h"

size_t attention_kernel_workspace_bytes(AttentionShape shape);
template <class T>
void attention_kernel_forward(T* out, float* lse, const T* qkv, AttentionShape shape, stream_t stream);
template <class T>
void attention_kernel_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                               AttentionShape shape, void* workspace, stream_t stream);
