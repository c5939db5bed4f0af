// attention_kernel.cu: attention.cuh compiled for the two types
#include "kernels/attention/attention.cuh"
#include "kernels/attention/attention_kernel.h"

template void attention_forward(float*, float*, const float*, AttentionShape, stream_t);
template void attention_forward(bfloat16*, float*, const bfloat16*, AttentionShape, stream_t);
template void attention_backward(float*, const float*, const float*, const float*, const float*, float*,
                                 AttentionShape, stream_t);
template void attention_backward(bfloat16*, const bfloat16*, const bfloat16*, const bfloat16*, const float*,
                                 float*, AttentionShape, stream_t);

size_t attention_kernel_workspace_bytes(AttentionShape shape) { return attention_scratch_bytes(shape); }

template <class T>
void attention_kernel_forward(T* out, float* lse, const T* qkv, AttentionShape shape, stream_t stream) {
    attention_forward(out, lse, qkv, shape, stream);
}

template <class T>
void attention_kernel_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                               AttentionShape shape, void* workspace, stream_t stream) {
    attention_backward(dqkv, dout, qkv, out, lse, static_cast<float*>(workspace), shape, stream);
}

template void attention_kernel_forward(float*, float*, const float*, AttentionShape, stream_t);
template void attention_kernel_forward(bfloat16*, float*, const bfloat16*, AttentionShape, stream_t);
template void attention_kernel_backward(float*, const float*, const float*, const float*, const float*,
                                        AttentionShape, void*, stream_t);
template void attention_kernel_backward(bfloat16*, const bfloat16*, const bfloat16*, const bfloat16*,
                                        const float*, AttentionShape, void*, stream_t);
