#include "kernels/attention/attention_cudnn.h"
#include "system/error.h"

struct CudnnAttention::State {
    const std::string reason =
        "this build has no cuDNN; where cuDNN and its frontend are installed, make gpu finds them";
    const CudnnOffer nothing{.refusal = reason};
};

CudnnAttention::CudnnAttention(bool) : state_(std::make_unique<State>()) {}
// NOLINTNEXTLINE(performance-unnecessary-value-param): attention_cudnn.cpp keeps it
CudnnAttention::CudnnAttention(bool, DescribedGpu) : state_(std::make_unique<State>()) {}
CudnnAttention::~CudnnAttention() = default;

const std::string& CudnnAttention::unavailable() { return state_->reason; }
const CudnnOffer& CudnnAttention::plan(AttentionShape, AttentionPass, size_t) { return state_->nothing; }
const CudnnOffer* CudnnAttention::compiled(AttentionShape, AttentionPass) { return &state_->nothing; }
void CudnnAttention::forward(bfloat16*, float*, const bfloat16*, AttentionShape, void*, stream_t) {
    throw Error(state_->reason);
}
void CudnnAttention::backward(bfloat16*, const bfloat16*, const bfloat16*, const bfloat16*, const float*,
                              AttentionShape, void*, stream_t) {
    throw Error(state_->reason);
}
