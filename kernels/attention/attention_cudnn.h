// attention_cudnn.h: attention by cuDNN's fused kernels, in bf16 on the GPU. Arguments as in attention.h.
//   attention_cudnn.cpp where the build has cuDNN and its frontend's headers, else attention_no_cudnn.cpp,
//   which offers nothing.
#pragma once
#include <memory>
#include <string>

#include "kernels/attention/attention.h"

enum class AttentionPass { forward, backward };

// A GPU that is described instead of present: cuDNN says what it would do there, and nothing runs.
struct DescribedGpu {
    int compute_capability, multiprocessors;
    std::string properties;  // in cuDNN's JSON
};

// What cuDNN makes of one pass over a shape.
struct CudnnOffer {
    std::string refusal;         // why it does not compute it; empty: it does
    size_t workspace_bytes = 0;  // that it needs; unknown of a described GPU
    AttentionShape part{};       // what one execution computes; the shape is computed part by part
};

class CudnnAttention {
public:
    explicit CudnnAttention(bool deterministic);
    CudnnAttention(bool deterministic, DescribedGpu gpu);
    ~CudnnAttention();
    CudnnAttention(const CudnnAttention&) = delete;

    // Why nothing can be computed here: no cuDNN, or a GPU that it is not for. Empty: it can.
    const std::string& unavailable();

    // Plans a pass over a shape within so much workspace, once; takes about a second.
    const CudnnOffer& plan(AttentionShape shape, AttentionPass pass, size_t most_workspace);
    // What plan answered; nullptr if it was not asked.
    const CudnnOffer* planned(AttentionShape shape, AttentionPass pass) const;

    // A pass that was planned and not refused.
    void forward(bfloat16* out, float* lse, const bfloat16* qkv, AttentionShape shape, void* workspace,
                 stream_t stream);
    void backward(bfloat16* dqkv, const bfloat16* dout, const bfloat16* qkv, const bfloat16* out,
                  const float* lse, AttentionShape shape, void* workspace, stream_t stream);

private:
    struct State;
    std::unique_ptr<State> state_;
};
