// attention_cpu.cpp: attention.h on the CPU, by our own kernel or by oneDNN
#include <omp.h>

#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_kernel.h"
#include "kernels/attention/attention_onednn.h"
#include "kernels/gemm/onednn_product.h"

struct Attention::State {
    AttentionBackend backend;
    bool fast_bf16 = onednn_multiplies_bf16_fast();
    OneDnnAttention onednn;

    // Measured per core, forward and backward together, head size 64: oneDNN's time over our kernel's.
    //   fp32: 1.30 at T = 64, 1.05 at 128, 0.92 at 256, 0.90 at 512, 0.78 at 1024. oneDNN computes 5
    //   products instead of 7, but each is a call, and its softmax goes through memory.
    //   bf16, where oneDNN multiplies it at half of fp32's speed: 1.9 at T = 64, 1.4 at 1024.
    // oneDNN needs one head of keys for every thread, our kernel only 64 rows of a head.
    template <class T>
    bool use_onednn(AttentionShape shape) const {
        if (backend != AttentionBackend::automatic) return backend == AttentionBackend::onednn;
        return shape.T >= 256 && (std::is_same_v<T, float> || fast_bf16) &&
               static_cast<long>(shape.B) * shape.NKV >= omp_get_max_threads();
    }
};

Attention::Attention(AttentionBackend backend, bool) : state_(std::make_unique<State>()) {
    CHECK(backend != AttentionBackend::cudnn,
          "--attention cudnn is for the GPU; this build has kernel and onednn");
    state_->backend = backend;
}
Attention::~Attention() = default;

template <class T>
std::vector<AttentionBackend> Attention::available() {
    if (!OneDnnAttention::supports<T>()) return {AttentionBackend::kernel};
    return {AttentionBackend::kernel, AttentionBackend::onednn};
}

template <class T>
size_t Attention::workspace_bytes(AttentionShape shape, bool) const {
    return state_->use_onednn<T>(shape) ? state_->onednn.workspace_bytes<T>(shape)
                                        : attention_kernel_workspace_bytes(shape);
}

template <class T>
void Attention::forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace,
                        stream_t stream) const {
    if (state_->use_onednn<T>(shape)) state_->onednn.forward(out, lse, qkv, shape, workspace);
    else attention_kernel_forward(out, lse, qkv, shape, stream);
}

template <class T>
void Attention::backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                         AttentionShape shape, void* workspace, stream_t stream) const {
    if (state_->use_onednn<T>(shape)) state_->onednn.backward(dqkv, dout, qkv, out, lse, shape, workspace);
    else attention_kernel_backward(dqkv, dout, qkv, out, lse, shape, workspace, stream);
}

#define INSTANTIATE(T) \
    template std::vector<AttentionBackend> Attention::available<T>(); \
    template size_t Attention::workspace_bytes<T>(AttentionShape, bool) const; \
    template void Attention::forward(T*, float*, const T*, AttentionShape, void*, stream_t) const; \
    template void Attention::backward(T*, const T*, const T*, const T*, const float*, AttentionShape, void*, \
                                      stream_t) const;
INSTANTIATE(float)
INSTANTIATE(bfloat16)
