// attention.h: causal self-attention over packed qkv, whichever implementation serves it.
//   qkv, dqkv (B, T, 3, NH, HS)   out, dout (B, T, NH, HS)   lse (B, NH, T) fp32: natural log of each row's sum of exp(score)
//   score = q k^T / sqrt(HS); HS up to 128, memory O(T). T is float or bfloat16; sums and softmax in fp32.
//   attention.cuh: our own flash kernel, both machines.  attention_onednn.cpp: matrix products of oneDNN, on the CPU.
//   attention_cpu.cpp and attention_gpu.cpp choose between them; the build links one of the two.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "simt/bfloat16.h"
#include "simt/device.h"

enum class AttentionBackend { automatic, kernel, onednn, cudnn };  // automatic: the fastest this build has, by shape and type

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
    // Throws UsageError if this build lacks the backend, naming those it has.
    explicit Attention(AttentionBackend backend = AttentionBackend::automatic);
    ~Attention();
    Attention(const Attention&) = delete;

    // What can be asked for in this build, on this machine, for this type; automatic left out.
    template <class T>
    static std::vector<AttentionBackend> available();

    // Scratch that forward and backward need for this shape, the same for both.
    template <class T>
    size_t workspace_bytes(AttentionShape shape) const;

    template <class T>
    void forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace, stream_t stream) const;

    // dqkv = the gradient of qkv, from dout, and out and lse as forward left them
    template <class T>
    void backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse, AttentionShape shape, void* workspace, stream_t stream) const;

private:
    struct State;
    std::unique_ptr<State> state_;
};
