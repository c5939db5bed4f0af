// attention_gpu.cpp: attention.h on the GPU: cuDNN in bf16, our own kernel otherwise and wherever cuDNN
//   refuses
#include <algorithm>
#include <set>
#include <string>
#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/attention_kernel.h"
#include "system/error.h"
#include "system/print_line.h"

namespace {

// Attention whose memory grows with T needs the gradient of q in fp32 and a few numbers for each row. cuDNN
// may use twice that, and at least 256 MiB. This excludes plans that store (T, T) matrices of large size.
size_t workspace_limit(AttentionShape s) {
    const auto size = [](int n) { return static_cast<size_t>(n); };
    return std::max(size_t{256} << 20, 2 * size(s.B) * size(s.T) * size(s.NH) * size(s.HS) * sizeof(float));
}

}  // namespace

struct Attention::State {
    const AttentionBackend backend;
    CudnnAttention cudnn;
    std::set<std::string> said;

    State(AttentionBackend backend, bool deterministic) : backend(backend), cudnn(deterministic) {}

    template <class T>
    bool considers_cudnn() const {
        return std::is_same_v<T, bfloat16> && backend != AttentionBackend::kernel;
    }

    // UsageError if cuDNN was asked for by name and refuses.
    void check_offer(const CudnnOffer& offer) const {
        CHECK(backend != AttentionBackend::cudnn || offer.refusal.empty(),
              "--attention cudnn: {}; expected --attention auto or kernel", offer.refusal);
    }

    // True if cuDNN computes the pass. A refusal by cuDNN is printed once. Shapes that were not planned,
    // such as a sample's, are too rare to be worth a plan.
    bool use_cudnn(AttentionShape shape, AttentionPass pass) {
        const CudnnOffer* const offer = considers_cudnn<bfloat16>() ? cudnn.compiled(shape, pass) : nullptr;
        if (!offer) return false;
        check_offer(*offer);
        if (!offer->refusal.empty() && said.insert(offer->refusal).second)
            print_line(stderr, "attention: our own kernel, not cuDNN's: " + offer->refusal);
        return offer->refusal.empty();
    }

    // cuDNN's workspace for one pass; 0 if our own kernel computes it.
    size_t cudnn_workspace_bytes(AttentionShape shape, AttentionPass pass) {
        const CudnnOffer& offer = cudnn.plan(shape, pass, workspace_limit(shape));
        check_offer(offer);
        return offer.refusal.empty() ? offer.workspace_bytes : 0;
    }
};

Attention::Attention(AttentionBackend backend, bool deterministic)
    : state_(std::make_unique<State>(backend, deterministic)) {
    CHECK(backend != AttentionBackend::onednn,
          "--attention onednn is for the CPU; expected auto, kernel or cudnn");
    if (backend == AttentionBackend::cudnn) {
        const std::string& reason = state_->cudnn.unavailable();
        CHECK(reason.empty(), "--attention cudnn: {}; expected --attention auto or kernel", reason);
    }
}
Attention::~Attention() = default;

template <class T>
std::vector<AttentionBackend> Attention::available() {
    if (!std::is_same_v<T, bfloat16> || !CudnnAttention(false).unavailable().empty())
        return {AttentionBackend::kernel};
    return {AttentionBackend::kernel, AttentionBackend::cudnn};
}

template <class T>
size_t Attention::workspace_bytes(AttentionShape shape, bool training) const {
    CHECK(state_->backend != AttentionBackend::cudnn || state_->considers_cudnn<T>(),
          "--attention cudnn computes in bf16 only; expected --dtype bf16, or --attention auto or kernel");
    size_t bytes = training ? attention_kernel_workspace_bytes(shape) : 0;
    if (state_->considers_cudnn<T>()) {
        bytes = std::max(bytes, state_->cudnn_workspace_bytes(shape, AttentionPass::forward));
        if (training) bytes = std::max(bytes, state_->cudnn_workspace_bytes(shape, AttentionPass::backward));
    }
    return bytes;
}

template <class T>
void Attention::forward(T* out, float* lse, const T* qkv, AttentionShape shape, void* workspace,
                        stream_t stream) const {
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (state_->use_cudnn(shape, AttentionPass::forward))
            return state_->cudnn.forward(out, lse, qkv, shape, workspace, stream);
    }
    attention_kernel_forward(out, lse, qkv, shape, stream);
}

template <class T>
void Attention::backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse,
                         AttentionShape shape, void* workspace, stream_t stream) const {
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (state_->use_cudnn(shape, AttentionPass::backward)) {
            return state_->cudnn.backward(dqkv, dout, qkv, out, lse, shape, workspace, stream);
        }
    }
    attention_kernel_backward(dqkv, dout, qkv, out, lse, shape, workspace, stream);
}

#define INSTANTIATE(T) \
    template std::vector<AttentionBackend> Attention::available<T>(); \
    template size_t Attention::workspace_bytes<T>(AttentionShape, bool) const; \
    template void Attention::forward(T*, float*, const T*, AttentionShape, void*, stream_t) const; \
    template void Attention::backward(T*, const T*, const T*, const T*, const float*, AttentionShape, void*, \
                                      stream_t) const;
INSTANTIATE(float)
INSTANTIATE(bfloat16)
