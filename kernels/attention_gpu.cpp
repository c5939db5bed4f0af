// attention_gpu.cpp: attention on the GPU, by our own kernel.
#include "attention.h"
#include "attention_kernel.h"
#include "error.h"

struct Attention::State {};

Attention::Attention(AttentionBackend backend) {
    CHECK(backend != AttentionBackend::onednn, "--attention onednn is for the CPU; this build has kernel only");
    CHECK(backend != AttentionBackend::cudnn, "--attention cudnn: this build has kernel only");
}
Attention::~Attention() = default;

template <class T>
std::vector<AttentionBackend> Attention::available() {
    return {AttentionBackend::kernel};
}

template <class T>
size_t Attention::workspace_bytes(AttentionShape shape) const {
    return attention_kernel_workspace_bytes(shape);
}

template <class T>
void Attention::forward(T* out, float* lse, const T* qkv, AttentionShape shape, void*, stream_t stream) const {
    attention_kernel_forward(out, lse, qkv, shape, stream);
}

template <class T>
void Attention::backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape, void* workspace,
                         stream_t stream) const {
    attention_kernel_backward(dqkv, dout, qkv, out, lse, shape, workspace, stream);
}

#define INSTANTIATE(T) \
    template std::vector<AttentionBackend> Attention::available<T>(); \
    template size_t Attention::workspace_bytes<T>(AttentionShape) const; \
    template void Attention::forward(T*, float*, const T*, AttentionShape, void*, stream_t) const; \
    template void Attention::backward(T*, const T*, const T*, const T*, const float*, AttentionShape, void*, stream_t) const;
INSTANTIATE(float)
INSTANTIATE(bfloat16)
