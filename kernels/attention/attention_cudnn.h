// attention_cudnn.h: attention by cuDNN's fused kernels, in bf16 on the GPU. The arguments are those of
//   attention.h.
//   attention_cudnn.cpp implements it if the build has cuDNN and its frontend's headers, else
//   attention_no_cudnn.cpp, which refuses everything.
#pragma once
#include <memory>
#include <string>

#include "kernels/attention/attention.h"

enum class AttentionPass { forward, backward };

// A GPU that is described instead of present: cuDNN answers for it, and nothing runs.
struct DescribedGpu {
    int compute_capability, multiprocessors;
    std::string properties;  // in cuDNN's JSON
};

// cuDNN's answer for one pass over a shape.
struct CudnnOffer {
    std::string refusal;         // the reason why cuDNN does not compute it; empty if it does
    size_t workspace_bytes = 0;  // needed by the plan
    AttentionShape part{};       // shape of one execution; the whole shape is computed part by part
};

class CudnnAttention {
public:
    explicit CudnnAttention(bool deterministic);
    CudnnAttention(bool deterministic, DescribedGpu gpu);
    ~CudnnAttention();
    CudnnAttention(const CudnnAttention&) = delete;

    // The reason why nothing can be computed here (no cuDNN, or an unsuitable GPU); empty if it can.
    const std::string& unavailable();

    // Plans a pass over a shape within so much workspace, without compiling anything.
    const CudnnOffer& plan(AttentionShape shape, AttentionPass pass, size_t most_workspace);
    // The offer that plan() returned for this shape and pass; nullptr if it was not called. The first call
    // compiles the plan, which takes about a second and may turn the offer into a refusal.
    const CudnnOffer* compiled(AttentionShape shape, AttentionPass pass);

    // For a shape and pass that compiled() did not refuse.
    void forward(bfloat16* out, float* lse, const bfloat16* qkv, AttentionShape shape, void* workspace,
                 stream_t stream);
    void backward(bfloat16* dqkv, const bfloat16* dout, const bfloat16* qkv, const bfloat16* out,
                  const float* lse, AttentionShape shape, void* workspace, stream_t stream);

private:
    struct State;
    std::unique_ptr<State> state_;
};
