// attention_cpu.cpp: attention on the CPU, by our own kernel or by oneDNN.
#include "attention.h"
#include <algorithm>
#include "attention_kernel.h"
#include "attention_onednn.h"
#include "onednn_product.h"

struct Attention::State {
    AttentionBackend backend;
    bool bf16_matrices = onednn_multiplies_bf16_fast();
    OneDnnAttention onednn;

    template <class T>
    bool use_onednn(AttentionShape) const {
        if (backend != AttentionBackend::automatic) return backend == AttentionBackend::onednn;
        return std::is_same_v<T, bfloat16> && bf16_matrices;
    }
};

Attention::Attention(AttentionBackend backend) : state_(std::make_unique<State>()) {
    CHECK(backend != AttentionBackend::cudnn, "--attention cudnn needs a GPU; this build has kernel and onednn");
    state_->backend = backend;
}
Attention::~Attention() = default;

std::vector<AttentionBackend> Attention::available() { return {AttentionBackend::kernel, AttentionBackend::onednn}; }

template <class T>
size_t Attention::workspace_bytes(AttentionShape shape) const {
    return state_->use_onednn<T>(shape) ? state_->onednn.workspace_bytes<T>(shape) : attention_kernel_workspace_bytes(shape);
}

template <class T>
void Attention::forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace, stream_t stream) const {
    if (state_->use_onednn<T>(shape)) state_->onednn.forward(out, lse, qkv, shape, workspace);
    else attention_kernel_forward(out, lse, qkv, shape, stream);
}

template <class T>
void Attention::backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape, void* workspace, stream_t stream) const {
    if (state_->use_onednn<T>(shape)) state_->onednn.backward(dqkv, dout, qkv, out, lse, shape, workspace);
    else attention_kernel_backward(dqkv, dout, qkv, out, lse, shape, workspace, stream);
}

#define INSTANTIATE(T) \
    template size_t Attention::workspace_bytes<T>(AttentionShape) const; \
    template void Attention::forward(T*, float*, const T*, AttentionShape, void*, stream_t) const; \
    template void Attention::backward(T*, const T*, const T*, const T*, const float*, AttentionShape, void*, stream_t) const;
INSTANTIATE(float)
INSTANTIATE(bfloat16)
