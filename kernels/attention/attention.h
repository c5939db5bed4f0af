// attention.h: causal self-attention over packed qkv, the interface of every implementation
//   out = softmax(q k^T / sqrt(HS)) v for each head, over the keys up to the query's own position
//   qkv, dqkv (B, T, NH + 2 NKV, HS): heads of q, of k, of v   out, dout (B, T, NH, HS)   HS up to 128
//   NH / NKV neighbouring heads of q share a head of k and v (Ainslie et al. 2023, arXiv:2305.13245)
//   lse (B, NH, T) fp32: natural logarithm of each row's sum of exp(score), kept for backward
//   T is float or bfloat16; sums and softmax are fp32. Memory is O(T).
//   Vaswani et al. 2017, arXiv:1706.03762; Dao et al. 2022, arXiv:2205.14135 (FlashAttention)
//
//   attention.cuh            our own flash kernels, for both machines
//   attention_mma.cuh        our own flash kernels for tensor cores, in bf16
//   attention_onednn.cpp     matrix products of oneDNN, on the CPU
//   attention_cudnn.cpp      cuDNN's fused kernels, on the GPU in bf16
//   attention_cpu.cpp and attention_gpu.cpp choose among them; the build links one of these two.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"
#include "kernels/simt/host_device.h"

// automatic: the fastest backend of this build for the shape and the type
enum class AttentionBackend { automatic, kernel, onednn, cudnn };

// The backend as --attention spells it.
constexpr const char* attention_backend_name(AttentionBackend backend) {
    constexpr const char* names[] = {"auto", "kernel", "onednn", "cudnn"};
    return names[static_cast<int>(backend)];
}

struct AttentionShape {
    int B, T, NH, HS;
    int NKV = NH;                                                   // heads of k and of v; divides NH
    constexpr HOST_DEVICE int queries() const { return NH / NKV; }  // heads of q for each head of k and v
};

class Attention {
public:
    // Throws UsageError, which names the available backends, if this build or machine lacks this one. With
    // deterministic, the same input gives the same bits in every call; without it cuDNN's backward may not.
    explicit Attention(AttentionBackend backend = AttentionBackend::automatic, bool deterministic = false);
    ~Attention();
    Attention(const Attention&) = delete;

    // The backends of this build that work on this machine for this type, without automatic.
    template <class T>
    static std::vector<AttentionBackend> available();

    // Bytes of scratch for this shape: for forward and, with training, also for backward. They also suffice
    // for fewer or shorter sequences, even if that shape was never passed here; on the GPU, cuDNN then has
    // no plan for it, and our own kernel computes it. Throws UsageError if the backend that was asked for
    // cannot compute the shape.
    template <class T>
    size_t workspace_bytes(AttentionShape shape, bool training = true) const;

    template <class T>
    void forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace,
                 stream_t stream) const;

    // dqkv = the gradient of qkv; out and lse are those of the forward pass
    template <class T>
    void backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape,
                  void* workspace, stream_t stream) const;

private:
    struct State;
    std::unique_ptr<State> state_;
};
