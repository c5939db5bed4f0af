// model_memory.cuh: the model's buffers, planned in the constructor, allocated once, filled with initial
// weights.
#pragma once
#include <algorithm>
#include <array>
#include <exception>
#include <set>

#include "system/error.h"
#include "trainer/engine/model.h"

template <class T>
Model<T>::Model(std::unique_ptr<Family<T>> family, const ModelOptions& options)
    : context_(options),
      family_(std::move(family)),
      table_(family_->make_table({options.world_size, options.optimizer == Optimizer::muon})),
      gradients_(table_, context_, memory_),
      parameters_(table_, context_, gradients_, memory_),
      update_(table_, context_, gradients_, parameters_, memory_),
      graphs_(options.graphs) {
    check_options();
    if (options.generated_tokens > 0)
        decoder_.emplace(context_, *family_, table_, memory_.cache,
                         DecoderOptions{.max_tokens = options.generated_tokens});
    family_->attach(context_, table_, &parameters_, decoder_ ? &decoder_->state() : nullptr);
    reserve();
}

template <class T>
void Model<T>::check_options() const {
    const ModelOptions& o = options();
    CHECK(o.B > 0, "a batch of {} sequences; expected 1 or more", o.B);
    CHECK(o.T > 0 && o.T <= config().context,
          "sequences of {} tokens; expected 1 to the model's context of {}", o.T, config().context);
    const int64_t tokens = static_cast<int64_t>(o.B) * o.T;
    CHECK(o.head_chunks > 0 && o.head_chunks <= tokens,
          "--head-chunks {}; expected 1 to the {} x {} = {} tokens of a micro-step", o.head_chunks, o.B, o.T,
          tokens);
    CHECK(o.rank >= 0 && o.rank < o.world_size, "process {} of {}", o.rank, o.world_size);
    CHECK(o.generated_tokens <= o.T, "texts of {} tokens; expected at most the {} of a sequence",
          o.generated_tokens, o.T);
}

template <class T>
Model<T>::~Model() {
    try {
        // Other processes may still read this memory: parameters in flight after the last update, or
        // gradients while an error ends another process. After an error in this process they may never
        // take part, and then every wait for them, on this stream too, would last forever.
        const Communicator::Ticket last = std::max(gradients_.latest(), parameters_.latest());
        if (last > 0 && std::uncaught_exceptions() > 0) context_.communicator->abort_operations();
        else if (last > 0) context_.communicator->wait(last, context_.stream);
        if (context_.stream) simt::stream_synchronize(context_.stream);
    } catch (const std::exception&) {}  // the communicator has failed, and an earlier wait has reported it
    graphs_.discard();
    for (const event_t event : copied_) {
        if (event) simt::event_destroy(event);
    }
}

template <class T>
void Model<T>::reserve() {
    const size_t N = static_cast<size_t>(options().B) * static_cast<size_t>(options().T);
    memory_.activations.reserve(context_.tokens, 3 * N);
    family_->reserve(memory_.activations, memory_.workspace);
    memory_.activations.reserve(logits_, head_rows() * Vp());
    memory_.activations.reserve(losses_, N);
    memory_.activations.reserve(step_sums_, 1);
    memory_.activations.reserve(eval_loss_, 1);
    if (decoder_) decoder_->reserve(memory_.activations);
    gemm_workspace_bytes_ = gemm_workspace_bytes();
    memory_.workspace.reserve(gemm_workspace_, gemm_workspace_bytes_);
}

// The largest workspace that any matrix product of the step, or of a prompt, needs.
template <class T>
size_t Model<T>::gemm_workspace_bytes() const {
    const size_t N = static_cast<size_t>(options().B) * static_cast<size_t>(options().T);
    std::set<std::array<size_t, 3>> products;
    for (TensorId id = 0; id < table_.tensors().size(); id++) {
        const Tensor& t = table_[id];
        const size_t rows = id == family_->head().weight ? head_rows() : N;
        const auto [OC, C] = table_.matrix(id);
        if (t.from_matmul && !t.joined) products.insert({rows, C, OC});
    }
    size_t bytes = update_.matrices().gemm_workspace_bytes();
    if (decoder_) bytes = std::max(bytes, decoder_->gemm_workspace_bytes());
    for (const auto& [rows, C, OC] : products) bytes = std::max(bytes, Gemm::workspace_bytes<T>(rows, C, OC));
    return bytes;
}

template <class T>
void Model<T>::allocate(Communicator* communicator) {
    const ModelOptions& o = options();
    if (!o.alone() &&
        !(communicator && communicator->size() == o.world_size && communicator->rank() == o.rank))
        throw Error(
            fmt::format("a model for process {} of {} needs their communicator", o.rank, o.world_size));
    context_.communicator = o.alone() ? nullptr : communicator;
    context_.stream = simt::stream_create();
    for (event_t& event : copied_) event = simt::event_create();
    steps_.allocate(context_.stream);
    memory_.allocate();
    family_->allocated();
    for (TensorId id = 0; decoder_ && id < table_.tensors().size(); id++)
        decoder_->state().weights[id].values = parameters_.value(id);
    context_.gemm = std::make_unique<Gemm>(Gemm::Options{.tf32 = o.tf32});
    context_.gemm->use_workspace(gemm_workspace_, gemm_workspace_bytes_);
    parameters_.initialise();
    update_.clear();
    gradients_.clear();
    simt::stream_synchronize(context_.stream);
}
