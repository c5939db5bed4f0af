// attention.h: causal self-attention over packed qkv, whichever implementation serves it.
//   qkv, dqkv (B, T, 3, NH, HS)   out, dout (B, T, NH, HS)
//   lse (B, NH, T) fp32: natural log of each row's sum of exp(score)
//   score = q k^T / sqrt(HS); HS up to 128, memory O(T). T is float or bfloat16; sums and softmax in fp32.
//   attention.cuh: our own flash kernels, both machines; attention_mma.cuh: those for tensor cores, bf16.
//   attention_onednn.cpp: matrix products of oneDNN, on the CPU.  attention_cudnn.cpp: cuDNN's fused kernels,
//   on the GPU, in bf16. attention_cpu.cpp and attention_gpu.cpp choose between them; the build links one of
//   the two.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"

// automatic: the fastest this build has, by shape and type
enum class AttentionBackend { automatic, kernel, onednn, cudnn };

// As --attention spells it.
constexpr const char* attention_backend_name(AttentionBackend backend) {
    constexpr const char* names[] = {"auto", "kernel", "onednn", "cudnn"};
    return names[static_cast<int>(backend)];
}

struct AttentionShape {
    int B, T, NH, HS;
};

class Attention {
public:
    // Throws UsageError if this build or machine lacks the backend, naming those it has. deterministic: the
    // same input gives the same bits in every call; without it cuDNN's backward may not.
    explicit Attention(AttentionBackend backend = AttentionBackend::automatic, bool deterministic = false);
    ~Attention();
    Attention(const Attention&) = delete;

    // What can be asked for in this build, on this machine, for this type; automatic left out.
    template <class T>
    static std::vector<AttentionBackend> available();

    // Scratch that forward, and in training backward too, need for this shape, and for shapes never asked
    // about, of fewer sequences or shorter ones, which cuDNN leaves to our own kernel. UsageError if the one
    // backend that was asked for does not compute the shape.
    template <class T>
    size_t workspace_bytes(AttentionShape shape, bool training = true) const;

    template <class T>
    void forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace,
                 stream_t stream) const;

    // dqkv = the gradient of qkv, from dout, and out and lse as forward left them
    template <class T>
    void backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape,
                  void* workspace, stream_t stream) const;

private:
    struct State;
    std::unique_ptr<State> state_;
};
