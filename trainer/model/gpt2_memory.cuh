// gpt2_memory.cuh: the model's buffers, planned in the constructor, allocated once, filled with initial
// weights.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/elementwise.cuh"
#include "kernels/global_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/optimizer_state.cuh"
#include "kernels/random.cuh"
#include "system/error.h"
#include "trainer/model/gpt2.h"

// Philox's purpose word for the first tensor; the following tensors count up from it. Other uses of the
// same seed have other words (sampler.cpp, permutation.h).
inline constexpr uint32_t weights_purpose = 1u << 16;

template <class T>
GPT2<T>::GPT2(const GPT2Config& config, const GPT2Options& options)
    : config_(config),
      options_(options),
      table_(config, options.world_size),
      attention_(options.attention, options.deterministic),
      graphs_(options.graphs) {
    CHECK(options.B > 0, "a batch of {} sequences; expected 1 or more", options.B);
    CHECK(options.T > 0 && options.T <= config.context,
          "sequences of {} tokens; expected 1 to the model's context of {}", options.T, config.context);
    CHECK(options.head_chunks > 0 && options.head_chunks <= static_cast<int64_t>(options.B) * options.T,
          "--head-chunks {}; expected 1 to the {} x {} = {} tokens of a micro-step", options.head_chunks,
          options.B, options.T, static_cast<int64_t>(options.B) * options.T);
    CHECK(options.rank >= 0 && options.rank < options.world_size, "process {} of {}", options.rank,
          options.world_size);
    blocks_.resize(size(config.L));
    gathered_.assign(size(config.L) + 2, 0);
    updates_ = normed_ = table_.stretches();
    if (!alone()) normed_ = table_.shard_of_stretches(options.rank);
    if (options.sharded()) updates_ = normed_;
    reserve_parameters();
    reserve_activations();
}

template <class T>
GPT2<T>::~GPT2() {
    try {
        // Other processes may still read this memory: parameters in flight after the last update, or
        // gradients while an error ends another process. After an error in this process they may never
        // take part, and then every wait for them, on this stream too, would last forever.
        const Communicator::Ticket last =
            std::max(reduced_, *std::max_element(gathered_.begin(), gathered_.end()));
        if (last > 0 && std::uncaught_exceptions() > 0) communicator_->break_off();
        else if (last > 0) communicator_->wait(last, stream_);
        if (stream_) simt::stream_synchronize(stream_);
    } catch (const std::exception&) {}  // the communicator has failed, and an earlier wait has reported it
    graphs_.discard();
    gemm_.reset();
    for (const event_t event : {copied_[0], copied_[1], ended_[0], ended_[1], ended_[2]}) {
        if (event) simt::event_destroy(event);
    }
    simt::pinned_free(numbers_);
    if (stream_) simt::stream_destroy(stream_);
}

template <class T>
void GPT2<T>::reserve_parameters() {
    const size_t n = table_.elements();
    parameters_.reserve(params_, n);
    if (!std::is_same_v<T, float>) master_.reserve(masters_, keeps_master_shard() ? state_elements() : n);
    if (!options_.training) return;
    gradients_.reserve(grads_, n);
    if (options_.reduce_bf16 && !alone()) gradients_.reserve(rounded_grads_, n);
    for (size_t i = 0; i < optimizer_buffers().size(); i++)
        optimizer_.reserve(optimizer_buffers_[i], state_elements());
    optimizer_.reserve(optimizer_state_, 1);
}

template <class T>
void GPT2<T>::reserve_activations() {
    const AttentionShape shape = shape_of(options_.B, options_.T);
    const size_t N = size(options_.B) * size(options_.T), C = size(config_.C), heads = N * size(config_.NH);
    const bool keep_block = options_.training && options_.recompute != Recompute::block;
    const bool keep_gelu = keep_block && options_.recompute != Recompute::gelu;

    activations_.reserve(tokens_, 3 * N);
    activations_.reserve(encoded_, N * C);
    for (int l = 0; l < config_.L; l++) {
        Block& a = block(l);
        // Activations that backward does not need exist only once, in block 0; share_activations() points
        // the other blocks to them.
        if (keep_block || l == 0) {
            for (T** tensor : {&a.ln1.out, &a.att, &a.residual2, &a.ln2.out})
                activations_.reserve(*tensor, N * C);
            activations_.reserve(a.qkv, N * 3 * C);
            activations_.reserve(a.fch, N * 4 * C);
            for (float** statistic : {&a.ln1.mean, &a.ln1.rstd, &a.ln2.mean, &a.ln2.rstd})
                activations_.reserve(*statistic, N);
            activations_.reserve(a.lse, heads);
        }
        if (keep_gelu || l == 0) activations_.reserve(a.fch_gelu, N * 4 * C);
        if (options_.training || l < 2) activations_.reserve(a.residual3, N * C);
    }
    activations_.reserve(lnf_.out, N * C);
    activations_.reserve(lnf_.mean, N);
    activations_.reserve(lnf_.rstd, N);
    activations_.reserve(logits_, head_rows() * size(config_.Vp()));
    activations_.reserve(losses_, N);
    activations_.reserve(step_sums_, 4);
    activations_.reserve(eval_loss_, 1);

    workspace_.reserve(work_.branch, N * C);
    workspace_.reserve(work_.gemm, gemm_workspace_bytes());
    workspace_.reserve(work_.attention, attention_.workspace_bytes<T>(shape, options_.training));
    if (!options_.training) return;
    workspace_.reserve(work_.dresidual, N * C);
    workspace_.reserve(work_.dnarrow, N * C);
    workspace_.reserve(work_.dwide, N * 4 * C);
    workspace_.reserve(work_.layernorm, layernorm_backward_scratch(N, config_.C));
    workspace_.reserve(work_.norm, global_norm_scratch(table_.elements()));
    // One norm for each range of the gradient norm, or for each tensor's gradient and weights.
    const size_t tensors =
        options_.sharded() ? table_.shard_of_tensors(options_.rank).size() : table_.tensors().size();
    workspace_.reserve(work_.part_norms, std::max(normed_.size(), 2 * tensors));
}

// The largest workspace that any matmul of the step needs.
template <class T>
size_t GPT2<T>::gemm_workspace_bytes() const {
    const size_t N = size(options_.B) * size(options_.T), C = size(config_.C), Vp = size(config_.Vp());
    size_t bytes = Gemm::workspace_bytes<T>(1, C, Vp);
    for (const auto& [in, out] :
         {std::pair{C, 3 * C}, std::pair{C, C}, std::pair{C, 4 * C}, std::pair{4 * C, C}})
        bytes = std::max(bytes, Gemm::workspace_bytes<T>(N, in, out));
    return std::max(bytes, Gemm::workspace_bytes<T>(head_rows(), C, Vp));
}

template <class T>
size_t GPT2<T>::head_rows() const {
    return simt::ceil_div(size(options_.B) * size(options_.T), size(options_.head_chunks));
}

template <class T>
MemoryPlan GPT2<T>::memory_plan() const {
    MemoryPlan plan;
    for (const Arena* arena :
         {&parameters_, &master_, &gradients_, &optimizer_, &activations_, &workspace_}) {
        if (arena->bytes() > 0) plan.emplace_back(arena->name(), arena->bytes());
    }
    return plan;
}

template <class T>
void GPT2<T>::allocate(Communicator* communicator) {
    if (!alone() && !(communicator && communicator->size() == options_.world_size &&
                      communicator->rank() == options_.rank))
        throw Error(fmt::format("a model for process {} of {} needs their communicator", options_.rank,
                                options_.world_size));
    communicator_ = alone() ? nullptr : communicator;
    stream_ = simt::stream_create();
    for (event_t& event : copied_) event = simt::event_create();
    for (event_t& event : ended_) {
        event = simt::event_create();
        simt::event_record(event, stream_);
    }
    numbers_ = static_cast<HostNumbers*>(simt::pinned_malloc(kept_steps * sizeof(HostNumbers)));
    for (Arena* arena : {&parameters_, &master_, &gradients_, &optimizer_, &activations_, &workspace_}) {
        if (arena->bytes() > 0) arena->allocate();
    }
    if constexpr (std::is_same_v<T, float>) masters_ = params_;
    step_loss_ = step_sums_, norm_squared_ = step_sums_ + 1;
    share_activations();
    gemm_ = std::make_unique<Gemm>(Gemm::Options{.tf32 = options_.tf32});
    gemm_->use_workspace(work_.gemm, gemm_workspace_bytes());
    initialise_weights();
}

template <class T>
void GPT2<T>::share_activations() {
    const Block& first = block(0);
    for (int l = 1; l < config_.L; l++) {
        Block& a = block(l);
        if (!a.fch) {
            T* const residual3 = a.residual3;
            T* const fch_gelu = a.fch_gelu;
            a = first;
            // evaluation needs only the previous block's output, so two buffers alternate
            a.residual3 = residual3 ? residual3 : block(l % 2).residual3;
            a.fch_gelu = fch_gelu;
        }
        if (!a.fch_gelu) a.fch_gelu = first.fch_gelu;
    }
}

template <class T>
void GPT2<T>::initialise_weights() {
    const float residual_std = 0.02f / std::sqrt(2.0f * static_cast<float>(config_.L));
    uint32_t purpose = weights_purpose;
    // The padding after each bucket is zeroed too, since checkpoints and collectives copy it.
    simt::fill_zero(whole_masters(), table_.elements() * sizeof(float), stream_);
    for (const Tensor& t : table_.tensors()) {
        float* values = whole_masters() + t.offset;
        if (t.init == Init::ones) fill(values, 1.0f, t.elements, stream_);
        if (t.init == Init::normal)
            normal_init(values, t.unpadded_elements, 0.0f, 0.02f, options_.seed, purpose, stream_);
        if (t.init == Init::residual_normal)
            normal_init(values, t.unpadded_elements, 0.0f, residual_std, options_.seed, purpose, stream_);
        purpose++;
    }
    adopt_masters(0, table_.elements());
    for (float* buffer : optimizer_buffers_) {
        if (buffer) simt::fill_zero(buffer, state_elements() * sizeof(float), stream_);
    }
    if (options_.training) {
        simt::fill_zero(optimizer_state_, sizeof(OptimizerState), stream_);
        // The padding of the gradients is zeroed too, since all-reduce sums it.
        simt::fill_zero(grads_, table_.elements() * sizeof(float), stream_);
    }
    simt::stream_synchronize(stream_);
}
