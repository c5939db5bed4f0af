#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/adamw.cuh"
#include "kernels/checksum.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/encoder.cuh"
#include "kernels/gelu.cuh"
#include "kernels/global_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/random.cuh"
#include "kernels/rmsprop.cuh"
#include "kernels/sgd.cuh"
#include "system/error.h"
#include "trainer/model/gpt2.h"

namespace {

// Of the first tensor; the others' follow. Numbers for other uses of the same seed differ from these in other words of Philox's counter
// (sampler.cpp, permutation.h).
constexpr uint32_t weights_purpose = 1u << 16;

size_t size(int n) { return static_cast<size_t>(n); }

template <class T>
std::vector<float> to_host(const T* device, size_t count, stream_t stream) {
    std::vector<T> raw(count);
    simt::copy_to_host(raw.data(), device, count * sizeof(T), stream);
    simt::stream_synchronize(stream);
    return std::vector<float>(raw.begin(), raw.end());
}

}  // namespace

size_t total_bytes(const MemoryPlan& plan) {
    size_t bytes = 0;
    for (const auto& [name, part] : plan) bytes += part;
    return bytes;
}

template <class T>
GPT2<T>::GPT2(const GPT2Config& config, const GPT2Options& options)
    : config_(config),
      options_(options),
      table_(config, options.world_size),
      attention_(options.attention, options.deterministic),
      graphs_(options.graphs) {
    CHECK(options.B > 0, "a batch of {} sequences; expected 1 or more", options.B);
    CHECK(options.T > 0 && options.T <= config.context, "sequences of {} tokens; expected 1 to the model's context of {}", options.T, config.context);
    CHECK(options.head_chunks > 0 && options.head_chunks <= static_cast<int64_t>(options.B) * options.T,
          "--head-chunks {}; expected 1 to the {} x {} = {} tokens of a micro-step", options.head_chunks, options.B, options.T,
          static_cast<int64_t>(options.B) * options.T);
    CHECK(options.rank >= 0 && options.rank < options.world_size, "process {} of {}", options.rank, options.world_size);
    layers_.resize(size(config.L));
    gathered_.assign(size(config.L) + 2, 0);
    const std::vector<Stretch>& stretches = table_.stretches();
    for (const Stretch& s : stretches) updates_.push_back({s.offset, s.elements, s.offset, s.weight_decay});
    if (alone()) {
        normed_ = updates_;
    } else {
        for (const ShardPiece& p : table_.shard_of_stretches(options.rank))
            normed_.push_back({p.offset, p.elements, p.state_offset, stretches[p.source].weight_decay});
        if (options.sharded()) updates_ = normed_;
    }
    reserve_parameters();
    reserve_activations();
}

template <class T>
GPT2<T>::~GPT2() {
    try {
        // Other processes may still be reading this memory: parameters on their way after the last update, gradients after an error of theirs.
        // After one of ours they may never come, and what waits for them, such as this stream, would not end.
        const Communicator::Ticket last = std::max(reduced_, *std::max_element(gathered_.begin(), gathered_.end()));
        if (last > 0 && std::uncaught_exceptions() > 0) communicator_->break_off();
        else if (last > 0) communicator_->wait(last, stream_);
        if (stream_) simt::stream_synchronize(stream_);
    } catch (const std::exception&) {}  // the communicator has failed: whoever waited for it has said so
    graphs_.forget();
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
    for (size_t i = 0; i < optimizer_buffers().size(); i++) optimizer_.reserve(optimizer_buffers_[i], state_elements());
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
        LayerActivations& a = layer(l);
        // What is not kept is one buffer for all layers: layer 0 owns it, allocate() lends it to the others.
        if (keep_block || l == 0) {
            for (T** tensor : {&a.ln1, &a.att, &a.residual2, &a.ln2}) activations_.reserve(*tensor, N * C);
            activations_.reserve(a.qkv, N * 3 * C);
            activations_.reserve(a.fch, N * 4 * C);
            for (float** statistic : {&a.ln1_mean, &a.ln1_rstd, &a.ln2_mean, &a.ln2_rstd}) activations_.reserve(*statistic, N);
            activations_.reserve(a.lse, heads);
        }
        if (keep_gelu || l == 0) activations_.reserve(a.fch_gelu, N * 4 * C);
        if (options_.training || l < 2) activations_.reserve(a.residual3, N * C);
    }
    activations_.reserve(lnf_, N * C);
    activations_.reserve(lnf_mean_, N);
    activations_.reserve(lnf_rstd_, N);
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
    // Of the ranges that make up the gradients' norm, or of tensors' gradients and weights.
    const size_t tensors = options_.sharded() ? table_.shard_of_tensors(options_.rank).size() : table_.tensors().size();
    workspace_.reserve(work_.part_norms, std::max(normed_.size(), 2 * tensors));
}

// The most that any of the step's products wants.
template <class T>
size_t GPT2<T>::gemm_workspace_bytes() const {
    const size_t N = size(options_.B) * size(options_.T), C = size(config_.C), Vp = size(config_.Vp());
    size_t bytes = Gemm::workspace_bytes<T>(1, C, Vp);
    for (const auto& [in, out] : {std::pair{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}}) bytes = std::max(bytes, Gemm::workspace_bytes<T>(N, in, out));
    return std::max(bytes, Gemm::workspace_bytes<T>(head_rows(), C, Vp));
}

// Tokens of a chunk of the head; the last one may have fewer.
template <class T>
size_t GPT2<T>::head_rows() const {
    return simt::ceil_div(size(options_.B) * size(options_.T), size(options_.head_chunks));
}

template <class T>
MemoryPlan GPT2<T>::memory_plan() const {
    MemoryPlan plan;
    for (const Arena* arena : {&parameters_, &master_, &gradients_, &optimizer_, &activations_, &workspace_}) {
        if (arena->bytes() > 0) plan.emplace_back(arena->name(), arena->bytes());
    }
    return plan;
}

template <class T>
size_t GPT2<T>::bytes_sent() const {
    const auto sent = [&](Collective::Kind kind, Collective::Element element) {
        return Collective{kind, nullptr, table_.elements(), element}.bytes_sent(options_.world_size);
    };
    const Collective::Element gradients = options_.reduce_bf16 ? Collective::bf16 : Collective::fp32;
    if (!options_.sharded()) return sent(Collective::all_reduce, gradients);
    return sent(Collective::reduce_scatter, gradients) + sent(Collective::all_gather, std::is_same_v<T, float> ? Collective::fp32 : Collective::bf16);
}

template <class T>
void GPT2<T>::allocate(Communicator* communicator) {
    if (!alone() && !(communicator && communicator->size() == options_.world_size && communicator->rank() == options_.rank))
        throw Error(fmt::format("a model for process {} of {} needs their communicator", options_.rank, options_.world_size));
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
    for (size_t l = 1; l < layers_.size(); l++) {
        LayerActivations &a = layers_[l], first = layers_[0];
        if (!a.fch) {
            T* const residual3 = a.residual3;
            T* const fch_gelu = a.fch_gelu;
            a = first;
            a.residual3 = residual3 ? residual3 : layers_[l % 2].residual3;  // evaluation needs the last block's output only
            a.fch_gelu = fch_gelu;
        }
        if (!a.fch_gelu) a.fch_gelu = first.fch_gelu;
    }
    gemm_ = std::make_unique<Gemm>(Gemm::Options{.tf32 = options_.tf32});
    gemm_->use_workspace(work_.gemm, gemm_workspace_bytes());
    initialise_weights();
}

template <class T>
void GPT2<T>::initialise_weights() {
    const float residual_std = 0.02f / std::sqrt(2.0f * static_cast<float>(config_.L));
    uint32_t purpose = weights_purpose;
    // The padding behind each bucket is zeroed too: checkpoints and collectives copy it along.
    simt::fill_zero(whole_masters(), table_.elements() * sizeof(float), stream_);
    for (const Tensor& t : table_.tensors()) {
        float* values = whole_masters() + t.offset;
        if (t.init == Init::ones) fill(values, 1.0f, t.elements, stream_);
        if (t.init == Init::normal) normal_init(values, t.unpadded_elements, 0.0f, 0.02f, options_.seed, purpose, stream_);
        if (t.init == Init::residual_normal) normal_init(values, t.unpadded_elements, 0.0f, residual_std, options_.seed, purpose, stream_);
        purpose++;
    }
    adopt_masters(0, table_.elements());
    for (float* buffer : optimizer_buffers_) {
        if (buffer) simt::fill_zero(buffer, state_elements() * sizeof(float), stream_);
    }
    if (options_.training) {
        simt::fill_zero(optimizer_state_, sizeof(OptimizerState), stream_);
        simt::fill_zero(grads_, table_.elements() * sizeof(float), stream_);  // their padding goes along when processes add them up
    }
    simt::stream_synchronize(stream_);
}

template <class T>
void GPT2<T>::adopt_masters(size_t offset, size_t elements) {
    if constexpr (!std::is_same_v<T, float>) convert(params_ + offset, whole_masters() + offset, elements, stream_);
    if (!keeps_master_shard()) return;
    for (const Segment& s : updates_) {
        const size_t begin = std::max(s.offset, offset), end = std::min(s.offset + s.elements, offset + elements);
        if (begin < end) simt::copy_on_device(masters_ + s.state_offset + (begin - s.offset), grads_ + begin, (end - begin) * sizeof(float), stream_);
    }
}

// ---------------------------------------------------------------------------------------------------------------------------------
// forward

template <class T>
void GPT2<T>::upload(const Batch& batch) {
    CHECK(batch.B > 0 && batch.B <= options_.B && batch.T > 0 && batch.T <= options_.T, "a batch of {} x {} tokens in a model allocated for {} x {}",
          batch.B, batch.T, options_.B, options_.T);
    operation("tokens to the device", {.bytes = batch.bytes()});
    simt::copy_to_device(tokens_, batch.inputs, batch.bytes(), stream_);
    // The loader fills a batch's memory again from the second call after it on: the copy before this one must be over by then.
    // The host stays at most one micro-step ahead of the GPU.
    simt::event_record(copied_[uploads_ % 2], stream_);
    if (uploads_ > 0) simt::event_synchronize(copied_[(uploads_ - 1) % 2]);
    uploads_++;
    shape_ = shape_of(batch.B, batch.T);
}

template <class T>
void GPT2<T>::forward_block(int l, AttentionShape shape) {
    const size_t N = size(shape.B) * size(shape.T), C = size(config_.C);
    LayerActivations& a = layer(l);
    operation("qkv", cost::matmul<T>(N, C, 3 * C));
    gemm_->forward(a.qkv, a.ln1, param(Kind::qkvw, l), param(Kind::qkvb, l), N, C, 3 * C, stream_);
    operation("attention", cost::attention_forward<T>(shape));
    attention_.forward(a.att, a.lse, a.qkv, shape, work_.attention, stream_);
    operation("attproj", cost::matmul<T>(N, C, C));
    gemm_->forward(work_.branch, a.att, param(Kind::attprojw, l), param(Kind::attprojb, l), N, C, C, stream_);
    operation("residual + layernorm", cost::residual_layernorm<T>(N, C));
    residual_layernorm_forward(a.ln2, a.residual2, a.ln2_mean, a.ln2_rstd, block_input(l), work_.branch, param(Kind::ln2w, l), param(Kind::ln2b, l),
                               N, config_.C, stream_);
    operation("fc + GELU", cost::matmul<T>(N, C, 4 * C, 0, 1));
    gemm_->forward_gelu(a.fch_gelu, a.fch, a.ln2, param(Kind::fcw, l), param(Kind::fcb, l), N, C, 4 * C, stream_);
}

template <class T>
void GPT2<T>::forward_hidden(AttentionShape shape) {
    const size_t N = size(shape.B) * size(shape.T), C = size(config_.C);
    await_group(0);
    await_group(1);
    operation("encoder", cost::encoder<T>(N, C));
    encoder_forward(encoded_, tokens_, param(Kind::wte), param(Kind::wpe), shape.B, shape.T, config_.C, stream_);
    LayerActivations& first = layer(0);
    operation("layernorm", cost::layernorm<T>(N, C));
    layernorm_forward(first.ln1, first.ln1_mean, first.ln1_rstd, encoded_, param(Kind::ln1w, 0), param(Kind::ln1b, 0), N, config_.C, stream_);
    for (int l = 0; l < config_.L; l++) {
        LayerActivations& a = layer(l);
        forward_block(l, shape);
        operation("fcproj", cost::matmul<T>(N, 4 * C, C));
        gemm_->forward(work_.branch, a.fch_gelu, param(Kind::fcprojw, l), param(Kind::fcprojb, l), N, 4 * C, C, stream_);
        await_group(l + 2);
        operation("residual + layernorm", cost::residual_layernorm<T>(N, C));
        // The sum that ends this block is normalised for the next one, or for the head, in the same kernel.
        if (l + 1 < config_.L) {
            LayerActivations& next = layer(l + 1);
            residual_layernorm_forward(next.ln1, a.residual3, next.ln1_mean, next.ln1_rstd, a.residual2, work_.branch, param(Kind::ln1w, l + 1),
                                       param(Kind::ln1b, l + 1), N, config_.C, stream_);
        } else {
            residual_layernorm_forward(lnf_, a.residual3, lnf_mean_, lnf_rstd_, a.residual2, work_.branch, param(Kind::lnfw), param(Kind::lnfb), N,
                                       config_.C, stream_);
        }
    }
}

template <class T>
void GPT2<T>::classify(size_t N, bool write_gradient) {
    const size_t C = size(config_.C);
    const float dloss = write_gradient ? 1.0f / static_cast<float>(options_.total_batch) : 0.0f;
    for (size_t begin = 0; begin < N; begin += head_rows()) {
        const size_t rows = std::min(head_rows(), N - begin);
        operation("head", cost::matmul<T>(rows, C, size(config_.Vp())));
        gemm_->forward(logits_, lnf_ + begin * C, param(Kind::wte), static_cast<const T*>(nullptr), rows, C, size(config_.Vp()), stream_);
        operation("classifier", cost::classifier<T>(rows, size(config_.Vp()), write_gradient));
        cross_entropy_forward_backward(logits_, losses_ + begin, tokens_ + N + begin, dloss, rows, config_.V, config_.Vp(), write_gradient, stream_);
        // The next chunk's logits take the place of these gradients, so they pass on what they have now.
        if (write_gradient && head_in_chunks()) backward_head(begin, rows, micro_step_ > 0 || begin > 0);
    }
}

template <class T>
void GPT2<T>::forward(const Batch& batch) {
    if (!options_.training) throw Error("forward: this model was allocated for evaluation only");
    upload(batch);
    step_targets_ = batch.step_targets;
    const size_t N = size(batch.B) * size(batch.T);
    const auto pass = [&] {
        forward_hidden(shape_);
        classify(N, true);
        operation("sum of losses", cost::pass<float>(1, N));
        sum_losses(step_loss_, losses_, N, micro_step_ > 0, stream_);
    };
    // Parameters that are still on their way are waited for by events of this step.
    const bool same_every_time = whole_batch() && std::all_of(gathered_.begin(), gathered_.end(), [](Communicator::Ticket t) { return t == 0; });
    if (same_every_time) part(micro_step_ > 0 ? StepGraphs::forward_other : StepGraphs::forward_first, pass);
    else pass();
    profile_.end(stream_);
}

template <class T>
double GPT2<T>::evaluate(const Batch& batch) {
    upload(batch);
    const size_t N = size(batch.B) * size(batch.T);
    forward_hidden(shape_);
    classify(N, false);
    operation("sum of losses", cost::pass<float>(1, N));
    sum_losses(eval_loss_, losses_, N, false, stream_);
    profile_.end(stream_);
    return static_cast<double>(read_scalar(eval_loss_));
}

template <class T>
std::vector<float> GPT2<T>::next_token_logits(const std::vector<int>& tokens) {
    CHECK(!tokens.empty() && tokens.size() <= size(options_.T), "{} tokens; expected 1 to {}", tokens.size(), options_.T);
    for (const int token : tokens) CHECK(token >= 0 && token < config_.V, "token {}; expected 0 to {}", token, config_.V - 1);
    // Padded to a power of two, so that libraries plan a few shapes only; what stands behind the last token does not reach it.
    const int length = static_cast<int>(std::min(std::bit_ceil(std::max<size_t>(tokens.size(), 16)), size(options_.T)));
    std::vector<int32_t> padded(tokens.begin(), tokens.end());
    padded.resize(size(length), 0);
    simt::copy_to_device(tokens_, padded.data(), padded.size() * sizeof(int32_t), stream_);
    forward_hidden(shape_of(1, length));
    const size_t C = size(config_.C);
    profile_.end(stream_);
    gemm_->forward(logits_, lnf_ + (tokens.size() - 1) * C, param(Kind::wte), static_cast<const T*>(nullptr), 1, C, size(config_.Vp()), stream_);
    return to_host(logits_, size(config_.V), stream_);
}

// ---------------------------------------------------------------------------------------------------------------------------------
// backward

template <class T>
void GPT2<T>::backward_block(int l, AttentionShape shape) {
    const size_t N = size(shape.B) * size(shape.T), C = size(config_.C);
    const bool accumulate = micro_step_ > 0;
    LayerActivations& a = layer(l);
    T *dresidual = work_.dresidual, *dnarrow = work_.dnarrow, *dwide = work_.dwide;

    if (options_.recompute == Recompute::block) {
        operation("layernorm again", cost::layernorm<T>(N, C));
        layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, block_input(l), param(Kind::ln1w, l), param(Kind::ln1b, l), N, config_.C, stream_);
        forward_block(l, shape);
    } else if (options_.recompute == Recompute::gelu) {
        operation("GELU again", cost::gelu<T>(N * 4 * C));
        gelu_forward(a.fch_gelu, a.fch, N * 4 * C, stream_);
    }

    operation("fcproj dW", cost::matmul_weight<T>(N, 4 * C, C, accumulate));
    // The bias gradients of both projections are the sums of dresidual that the layernorm's backward before them leaves.
    gemm_->backward_weight(grad(Kind::fcprojw, l), nullptr, dresidual, a.fch_gelu, N, 4 * C, C, accumulate, stream_);
    operation("fcproj dX + dGELU", cost::matmul<T>(N, 4 * C, C, 1));
    gemm_->backward_input_gelu(dwide, dresidual, param(Kind::fcprojw, l), a.fch, N, 4 * C, C, stream_);
    operation("fc dW", cost::matmul_weight<T>(N, C, 4 * C, accumulate));
    gemm_->backward_weight(grad(Kind::fcw, l), grad(Kind::fcb, l), dwide, a.ln2, N, C, 4 * C, accumulate, stream_);
    operation("fc dX", cost::matmul<T>(N, C, 4 * C));
    gemm_->backward_input(dnarrow, dwide, param(Kind::fcw, l), N, C, 4 * C, stream_);
    operation("layernorm backward", cost::layernorm_backward<T>(N, C, true));
    layernorm_backward(dresidual, grad(Kind::ln2w, l), grad(Kind::ln2b, l), grad(Kind::attprojb, l), work_.layernorm, dresidual, dnarrow, a.residual2,
                       param(Kind::ln2w, l), a.ln2_mean, a.ln2_rstd, N, config_.C, stream_);

    operation("attproj dW", cost::matmul_weight<T>(N, C, C, accumulate));
    gemm_->backward_weight(grad(Kind::attprojw, l), nullptr, dresidual, a.att, N, C, C, accumulate, stream_);
    operation("attproj dX", cost::matmul<T>(N, C, C));
    gemm_->backward_input(dnarrow, dresidual, param(Kind::attprojw, l), N, C, C, stream_);
    operation("attention backward", cost::attention_backward<T>(shape));
    attention_.backward(dwide, dnarrow, a.qkv, a.att, a.lse, shape, work_.attention, stream_);
    operation("qkv dW", cost::matmul_weight<T>(N, C, 3 * C, accumulate));
    gemm_->backward_weight(grad(Kind::qkvw, l), grad(Kind::qkvb, l), dwide, a.ln1, N, C, 3 * C, accumulate, stream_);
    operation("qkv dX", cost::matmul<T>(N, C, 3 * C));
    gemm_->backward_input(dnarrow, dwide, param(Kind::qkvw, l), N, C, 3 * C, stream_);
    operation("layernorm backward", cost::layernorm_backward<T>(N, C, true));
    layernorm_backward(dresidual, grad(Kind::ln1w, l), grad(Kind::ln1b, l), l > 0 ? grad(Kind::fcprojb, l - 1) : nullptr, work_.layernorm, dresidual,
                       dnarrow, block_input(l), param(Kind::ln1w, l), a.ln1_mean, a.ln1_rstd, N, config_.C, stream_);
}

// From the gradients of the logits of a chunk: dwte = (or +=, if accumulate), and the chunk's part of the gradient of lnf, in dnarrow.
template <class T>
void GPT2<T>::backward_head(size_t begin, size_t rows, bool accumulate) {
    const size_t C = size(config_.C), Vp = size(config_.Vp());
    operation("head dW", cost::matmul_weight<T>(rows, C, Vp, accumulate));
    gemm_->backward_weight(grad(Kind::wte), nullptr, logits_, lnf_ + begin * C, rows, C, Vp, accumulate, stream_);
    operation("head dX", cost::matmul<T>(rows, C, Vp));
    gemm_->backward_input(work_.dnarrow + begin * C, logits_, param(Kind::wte), rows, C, Vp, stream_);
}

template <class T>
void GPT2<T>::backward(bool last_micro_step) {
    const auto pass = [&] { backward_pass(last_micro_step); };
    // Alone, the last micro-step is like the others. With several processes it sends gradients, and is not captured: the communicator times every
    // operation by events of its own (--comm-timeout), which a replay would not record.
    if (whole_batch() && (alone() || !last_micro_step)) part(micro_step_ > 0 ? StepGraphs::backward_other : StepGraphs::backward_first, pass);
    else pass();
    profile_.end(stream_);
    micro_step_++;
}

template <class T>
void GPT2<T>::backward_pass(bool last_micro_step) {
    const size_t N = size(shape_.B) * size(shape_.T), C = size(config_.C);
    const bool accumulate = micro_step_ > 0;
    if (!accumulate) {
        for (const Stretch& s : table_.stretches()) {
            if (s.from_matmul) continue;
            operation("zero gradients", cost::pass<float>(1, s.elements));
            simt::fill_zero(grads_ + s.offset, s.elements * sizeof(float), stream_);
        }
    }
    const LayerActivations& last = layer(config_.L - 1);
    if (!head_in_chunks()) backward_head(0, N, accumulate);  // else forward has done it
    operation("layernorm backward", cost::layernorm_backward<T>(N, C, false));
    layernorm_backward(work_.dresidual, grad(Kind::lnfw), grad(Kind::lnfb), grad(Kind::fcprojb, config_.L - 1), work_.layernorm,
                       static_cast<const T*>(nullptr), work_.dnarrow, last.residual3, param(Kind::lnfw), lnf_mean_, lnf_rstd_, N, config_.C, stream_);
    if (last_micro_step) reduce(1 + config_.L);
    for (int l = config_.L - 1; l >= 0; l--) {
        backward_block(l, shape_);
        if (last_micro_step) reduce(1 + l);
    }
    operation("encoder backward", cost::encoder<T>(N, C));
    encoder_backward(grad(Kind::wte), grad(Kind::wpe), work_.dresidual, tokens_, tokens_ + 2 * N, shape_.B, shape_.T, config_.C, stream_);
    if (last_micro_step) reduce(0);
}

template <class T>
void GPT2<T>::rehearse(const Batch& batch) {
    const size_t micro_batch = size(options_.B) * size(options_.T) * size(options_.world_size);
    // The second micro-step's gradients of weights are added to the first one's: other products.
    for (size_t micro = 0; micro < std::min<size_t>(2, options_.total_batch / micro_batch); micro++) {
        forward(batch);
        backward(false);
    }
    micro_step_ = 0;
    simt::stream_synchronize(stream_);
}

// ---------------------------------------------------------------------------------------------------------------------------------
// several processes

// Begins to add up a group's gradients, which are complete. With ZeRO-1 each process needs the sums of its own part only.
template <class T>
void GPT2<T>::reduce(int group) {
    if (alone()) return;
    const Collective::Kind kind = options_.sharded() ? Collective::reduce_scatter : Collective::all_reduce;
    for (const Bucket& b : table_.buckets()) {
        if (b.group != group) continue;
        operation("send gradients");
        if (options_.reduce_bf16) {
            convert(rounded_grads_ + b.offset, grads_ + b.offset, b.elements, stream_);
            reduced_ = communicator_->begin({kind, rounded_grads_ + b.offset, b.elements, Collective::bf16}, stream_);
        } else {
            reduced_ = communicator_->begin({kind, grads_ + b.offset, b.elements, Collective::fp32}, stream_);
        }
    }
}

template <class T>
void GPT2<T>::wait_for_gradients() {
    if (alone()) return;
    if (reduced_ == 0) throw Error("update: no micro-step was the step's last");
    operation("wait for gradients");
    communicator_->wait(reduced_, stream_);
    reduced_ = 0;
    if (!options_.reduce_bf16) return;
    for (const Segment& s : updates_) convert(grads_ + s.offset, rounded_grads_ + s.offset, s.elements, stream_);
}

// Begins to hand everybody the parts of the parameters that the others have updated: in the order in which forward will want them.
template <class T>
void GPT2<T>::gather_parameters() {
    const Collective::Element element = std::is_same_v<T, float> ? Collective::fp32 : Collective::bf16;
    operation("send parameters");
    for (const Bucket& b : table_.buckets())
        gathered_[size(b.group)] = communicator_->begin({Collective::all_gather, params_ + b.offset, b.elements, element}, stream_);
}

template <class T>
void GPT2<T>::await_group(int group) {
    Communicator::Ticket& ticket = gathered_[size(group)];
    if (ticket == 0) return;
    operation("wait for parameters");
    communicator_->wait(std::exchange(ticket, 0), stream_);
}

template <class T>
void GPT2<T>::await_parameters() {
    for (int group = 0; group < config_.L + 2; group++) await_group(group);
}

// ---------------------------------------------------------------------------------------------------------------------------------
// update

template <class T>
void GPT2<T>::update_segment(const Segment& s, const OptimizerOptions& o) {
    T* const params = params_ + s.offset;
    float *const masters = masters_ + (keeps_master_shard() ? s.state_offset : s.offset), *const grads = grads_ + s.offset;
    float* const first = optimizer_buffers_[0] ? optimizer_buffers_[0] + s.state_offset : nullptr;
    float* const second = optimizer_buffers_[1] ? optimizer_buffers_[1] + s.state_offset : nullptr;
    const double decay = s.weight_decay ? o.weight_decay : 0.0;
    operation("optimizer", cost::update(s.elements, size(first != nullptr) + size(second != nullptr), std::is_same_v<T, float> ? 0 : sizeof(T)));
    switch (options_.optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam:
            adamw_update(
                params, masters, first, second, grads, s.elements,
                {.beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = decay, .decoupled = options_.optimizer == Optimizer::adamw},
                optimizer_state_, stream_);
            break;
        case Optimizer::sgd:
            sgd_update(params, masters, first, grads, s.elements, {.momentum = o.momentum, .weight_decay = decay, .nesterov = o.nesterov},
                       optimizer_state_, stream_);
            break;
        case Optimizer::rmsprop:
            rmsprop_update(params, masters, first, second, grads, s.elements,
                           {.alpha = o.beta2, .eps = o.eps, .momentum = o.momentum, .weight_decay = decay}, optimizer_state_, stream_);
            break;
    }
}

template <class T>
void GPT2<T>::begin_step() {
    profile_.begin_step();
    if (finished_ == begun_) simt::event_record(ended_[(begun_ + kept_steps - 1) % kept_steps], stream_);
}

template <class T>
void GPT2<T>::begin_update(const OptimizerOptions& options, const StepFlags& flags, const Veto& veto) {
    if (begun_ == finished_ + 2) throw Error("begin_update: two steps are under way; expected finish_update before a third");
    const size_t step = begun_ % kept_steps;
    HostNumbers& numbers = numbers_[step];
    wait_for_gradients();
    part(StepGraphs::gradient_norm, [&] {
        for (size_t i = 0; i < normed_.size(); i++) {
            operation("gradient norm", cost::pass<float>(1, normed_[i].elements));
            global_norm_squared(work_.part_norms + i, work_.norm, grads_ + normed_[i].offset, normed_[i].elements, stream_);
        }
        operation("sum of norms");
        if (normed_.empty()) simt::fill_zero(norm_squared_, sizeof(float), stream_);
        else sum_losses(norm_squared_, work_.part_norms, normed_.size(), false, stream_);
    });
    numbers.sums[2] = flags.stop, numbers.sums[3] = flags.writing;
    // Without targets there is no gradient, whatever its weight.
    numbers.targets = step_targets_ < 0 ? static_cast<double>(options_.total_batch) : std::max(1.0, static_cast<double>(step_targets_));
    numbers.gradient_weight = static_cast<double>(options_.total_batch) / numbers.targets;
    operation("flags to the device");
    simt::copy_to_device(step_sums_ + 2, numbers.sums + 2, 2 * sizeof(float), stream_);
    if (!alone()) {
        operation("loss, norm and flags of all processes");
        communicator_->wait(communicator_->begin({Collective::all_reduce, step_sums_, 4, Collective::fp32}, stream_), stream_);
    }
    operation("loss, norm and flags to the host");
    simt::copy_to_host(numbers.sums, step_sums_, sizeof(numbers.sums), stream_);
    profile_.end(stream_);
    micro_step_ = 0;
    vetoed_[step].clear();
    if (veto) {
        simt::stream_synchronize(stream_);
        vetoed_[step] = veto(step_result(step));
    }
    if (vetoed_[step].empty()) {
        numbers.lr = options.lr;
        operation("learning rate to the device");
        static_assert(offsetof(OptimizerState, gradient_weight) == offsetof(OptimizerState, lr) + sizeof(double) &&
                      offsetof(HostNumbers, gradient_weight) == offsetof(HostNumbers, lr) + sizeof(double));
        simt::copy_to_device(&optimizer_state_->lr, &numbers.lr, 2 * sizeof(double), stream_);
        OptimizerOptions constants = options;
        constants.lr = 0;
        if (!(constants == captured_)) graphs_.forget(StepGraphs::parameter_update);
        captured_ = constants;
        part(StepGraphs::parameter_update, [&] {
            operation("clip and count");
            optimizer_prepare(optimizer_state_, norm_squared_, static_cast<float>(options.clip), options.beta1, options.beta2, stream_);
            for (const Segment& s : updates_) update_segment(s, options);
        });
        if (options_.sharded()) gather_parameters();
    }
    profile_.end(stream_);
    simt::event_record(ended_[step], stream_);
    begun_++;
}

template <class T>
StepResult GPT2<T>::finish_update() {
    if (finished_ == begun_) throw Error("finish_update: no update has begun");
    const size_t step = finished_ % kept_steps, before = (finished_ + kept_steps - 1) % kept_steps;
    const double ms = static_cast<double>(simt::event_elapsed_ms(ended_[before], ended_[step]));  // waits
    StepResult result = step_result(step);
    result.ms = ms;
    result.skipped = vetoed_[step];
    if (result.skipped.empty() && !std::isfinite(result.grad_norm)) result.skipped = "grad_norm is not finite";
    finished_++;
    return result;
}

// As far as it has reached the host.
template <class T>
StepResult GPT2<T>::step_result(size_t step) const {
    const auto& [lr, weight, sums, targets] = numbers_[step];
    return {.loss = sums[0] / static_cast<float>(targets),
            .grad_norm = static_cast<float>(weight) * std::sqrt(sums[1]),
            .any = {sums[2] > 0, sums[3] > 0}};
}

template <class T>
float GPT2<T>::read_scalar(const float* device) const {
    float value = 0;
    simt::copy_to_host(&value, device, sizeof(value), stream_);
    simt::stream_synchronize(stream_);
    return value;
}

// ---------------------------------------------------------------------------------------------------------------------------------
// looking inside

template <class T>
std::vector<float> GPT2<T>::parameter(const Tensor& tensor) {
    await_parameters();
    if (keeps_master_shard()) return to_host(params_ + tensor.offset, tensor.elements, stream_);
    return to_host(masters_ + tensor.offset, tensor.elements, stream_);
}

template <class T>
std::vector<float> GPT2<T>::gradient(const Tensor& tensor) const {
    return to_host(grads_ + tensor.offset, tensor.elements, stream_);
}

template <class T>
SquaredNorms GPT2<T>::squared_norms() {
    await_parameters();
    const std::vector<Tensor>& tensors = table_.tensors();
    std::vector<ShardPiece> pieces;
    if (options_.sharded()) pieces = table_.shard_of_tensors(options_.rank);
    else
        for (size_t i = 0; i < tensors.size(); i++) pieces.push_back({i, tensors[i].offset, tensors[i].elements, tensors[i].offset});
    for (size_t i = 0; i < pieces.size(); i++) {
        const ShardPiece& p = pieces[i];
        const float* master = masters_ + (keeps_master_shard() ? p.state_offset : p.offset);
        global_norm_squared(work_.part_norms + 2 * i, work_.norm, grads_ + p.offset, p.elements, stream_);
        global_norm_squared(work_.part_norms + 2 * i + 1, work_.norm, master, p.elements, stream_);
    }
    const std::vector<float> squares = to_host(work_.part_norms, 2 * pieces.size(), stream_);
    std::vector<double> sums(2 * tensors.size(), 0.0);  // of gradients, then of weights
    for (size_t i = 0; i < pieces.size(); i++) {
        sums[pieces[i].source] += static_cast<double>(squares[2 * i]);
        sums[tensors.size() + pieces[i].source] += static_cast<double>(squares[2 * i + 1]);
    }
    if (options_.sharded()) sums = sum_over_processes(*communicator_, sums);
    SquaredNorms norms;
    const auto weights = sums.begin() + static_cast<ptrdiff_t>(tensors.size());
    norms.gradients.assign(sums.begin(), weights);
    const double weight = begun_ > 0 ? numbers_[(begun_ - 1) % kept_steps].gradient_weight : 1;
    for (auto& norm : norms.gradients) norm = static_cast<float>(norm * weight * weight);
    norms.weights.assign(weights, sums.end());
    return norms;
}

template <class T>
void GPT2<T>::set_parameter(const Tensor& tensor, const std::vector<float>& values) {
    CHECK(values.size() == tensor.elements || values.size() == tensor.unpadded_elements, "{}: {} values; expected {}", tensor.name, values.size(),
          tensor.unpadded_elements);
    await_parameters();
    float* master = whole_masters() + tensor.offset;
    simt::fill_zero(master, tensor.elements * sizeof(float), stream_);
    simt::copy_to_device(master, values.data(), values.size() * sizeof(float), stream_);
    adopt_masters(tensor.offset, tensor.elements);
    simt::stream_synchronize(stream_);
}

template <class T>
void GPT2<T>::read_masters(float* host) {
    await_parameters();
    if (keeps_master_shard()) {
        for (const Segment& s : updates_) simt::copy_on_device(grads_ + s.offset, masters_ + s.state_offset, s.elements * sizeof(float), stream_);
        Communicator::Ticket gathered = 0;
        for (const Bucket& b : table_.buckets())
            gathered = communicator_->begin({Collective::all_gather, grads_ + b.offset, b.elements, Collective::fp32}, stream_);
        communicator_->wait(gathered, stream_);
    }
    if (host) simt::copy_to_host(host, whole_masters(), table_.elements() * sizeof(float), stream_);
    simt::stream_synchronize(stream_);
}

template <class T>
void GPT2<T>::write_masters(const float* host) {
    await_parameters();
    simt::copy_to_device(whole_masters(), host, table_.elements() * sizeof(float), stream_);
    adopt_masters(0, table_.elements());
    simt::stream_synchronize(stream_);
}

template <class T>
uint64_t GPT2<T>::checksum() {
    await_parameters();
    std::vector<unsigned long long> sums(table_.tensors().size(), 0);
    const simt::DeviceBuffer<unsigned long long> device(sums.size());
    simt::fill_zero(device.data(), device.bytes(), stream_);
    for (size_t i = 0; i < sums.size(); i++) {
        const Tensor& t = table_.tensors()[i];
        add_checksum(device.data() + i, params_ + t.offset, t.elements, stream_);
    }
    simt::copy_to_host(sums.data(), device.data(), device.bytes(), stream_);
    simt::stream_synchronize(stream_);
    uint64_t all = 0;
    for (const unsigned long long sum : sums) all = all * 31 + sum;
    return all;
}

template <class T>
std::vector<std::string> GPT2<T>::optimizer_buffers() const {
    return optimizer_buffer_names(options_.optimizer, options_.momentum);
}

template <class T>
float* GPT2<T>::optimizer_buffer(const std::string& name) const {
    if (!options_.training) throw Error("this model was allocated for evaluation only: it has no optimizer state");
    const std::vector<std::string> names = optimizer_buffers();
    for (size_t i = 0; i < names.size(); i++) {
        if (names[i] == name) return optimizer_buffers_[i];
    }
    throw Error("the optimizer keeps no buffer called " + name);
}

template <class T>
void GPT2<T>::read_optimizer(const std::string& buffer, float* host) const {
    simt::copy_to_host(host, optimizer_buffer(buffer), state_elements() * sizeof(float), stream_);
    simt::stream_synchronize(stream_);
}

template <class T>
void GPT2<T>::write_optimizer(const std::string& buffer, const float* host) {
    float* const own = optimizer_buffer(buffer);
    if (options_.sharded()) {
        for (const Segment& s : updates_) simt::copy_to_device(own + s.state_offset, host + s.offset, s.elements * sizeof(float), stream_);
    } else {
        simt::copy_to_device(own, host, table_.elements() * sizeof(float), stream_);
    }
    simt::stream_synchronize(stream_);
}

template <class T>
int GPT2<T>::optimizer_step() const {
    OptimizerState state;
    simt::copy_to_host(&state, optimizer_state_, sizeof(state), stream_);
    simt::stream_synchronize(stream_);
    return state.step;
}

template <class T>
void GPT2<T>::set_optimizer_step(int step) {
    OptimizerState state = {};  // the rest is set anew by every update
    state.step = step;
    simt::copy_to_device(optimizer_state_, &state, sizeof(state), stream_);
    simt::stream_synchronize(stream_);
}

template <class T>
std::vector<float> GPT2<T>::activation(const std::string& name, int l) const {
    const size_t N = size(shape_.B) * size(shape_.T), C = size(config_.C);
    if (name == "encoded") return to_host(encoded_, N * C, stream_);
    if (name == "lnf") return to_host(lnf_, N * C, stream_);
    if (name == "logits" && head_in_chunks()) throw Error(fmt::format("logits of {} chunks are not kept; expected one chunk", options_.head_chunks));
    if (name == "logits") return to_host(logits_, N * size(config_.Vp()), stream_);
    const LayerActivations& a = layers_.at(size(l));
    if (name == "ln1") return to_host(a.ln1, N * C, stream_);
    if (name == "qkv") return to_host(a.qkv, N * 3 * C, stream_);
    if (name == "att") return to_host(a.att, N * C, stream_);
    if (name == "residual2") return to_host(a.residual2, N * C, stream_);
    if (name == "ln2") return to_host(a.ln2, N * C, stream_);
    if (name == "fch") return to_host(a.fch, N * 4 * C, stream_);
    if (name == "fch_gelu") return to_host(a.fch_gelu, N * 4 * C, stream_);
    if (name == "residual3") return to_host(a.residual3, N * C, stream_);
    throw Error("no activation is called " + name);
}

template <class T>
std::vector<float> GPT2<T>::losses() const {
    return to_host(losses_, size(shape_.B) * size(shape_.T), stream_);
}

template class GPT2<float>;
template class GPT2<bfloat16>;
