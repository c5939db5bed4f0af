#include <algorithm>

#include "kernels/quantize.cuh"
#include "kernels/random.cuh"
#include "system/error.h"
#include "trainer/inference/generator.h"

namespace {

// The activations must hold a prompt, or a token of every sample. On a GPU, cuDNN's planning for a prompt
// would take longer than our own kernel.
ModelOptions options_for(const DecoderOptions& o) {
    const int T = std::max(o.max_tokens, 1);
    return {.B = simt::ceil_div(std::max(o.samples, 1), T),
            .T = T,
            .training = false,
            .attention = simt::is_gpu() ? AttentionBackend::kernel : AttentionBackend::automatic};
}

}  // namespace

template <class T>
Generator<T>::Generator(std::unique_ptr<Family<T>> family, const DecoderOptions& options)
    : context_(options_for(options)),
      family_(std::move(family)),
      table_(family_->make_table(1)),
      decoder_(context_, *family_, table_, memory_.cache, options) {
    family_->attach(context_, table_, nullptr, &decoder_.state());
    GenerationState<T>& g = decoder_.state();
    const auto longest_prompt = static_cast<size_t>(g.options.max_tokens);
    block_floats_ = size_t{1} << 20;
    for (TensorId id = 0; id < table_.tensors().size(); id++) {
        const Tensor& t = table_[id];
        const auto [rows, columns] = table_.matrix(id);
        const size_t elements = rows * columns;
        block_floats_ = std::max(block_floats_, t.shape.back());
        if (t.joined) continue;  // allocate() places it behind the tensor before
        if (g.options.int8 && t.int8) {
            memory_.parameters.reserve(g.weights[id].quantized, elements);
            memory_.parameters.reserve(g.weights[id].scales, rows);
            if (table_.is_block(t.group))
                g.int8_scratch_bytes = std::max(g.int8_scratch_bytes,
                                                Gemm::int8_scratch_bytes<T>(longest_prompt, columns, rows));
        } else {
            memory_.parameters.reserve(g.weights[id].values, elements);
        }
    }
    family_->reserve(memory_.activations, memory_.workspace);
    decoder_.reserve(memory_.activations);
    memory_.workspace.reserve(staging_, block_floats_);
    if (g.options.int8) memory_.workspace.reserve(g.int8_scratch, g.int8_scratch_bytes);
    gemm_workspace_bytes_ = decoder_.gemm_workspace_bytes();
    memory_.workspace.reserve(gemm_workspace_, gemm_workspace_bytes_);
}

template <class T>
void Generator<T>::allocate() {
    context_.stream = simt::stream_create();
    memory_.allocate();
    for (TensorId id = 1; id < table_.tensors().size(); id++) {
        if (!table_[id].joined) continue;
        auto& weights = decoder_.state().weights;
        const auto& before = weights[id - 1];
        const size_t elements = table_[id - 1].elements, rows = table_[id - 1].shape[0];
        if (before.quantized) weights[id] = {nullptr, before.quantized + elements, before.scales + rows};
        else weights[id].values = before.values + elements;
    }
    family_->allocated();
    context_.gemm = std::make_unique<Gemm>(Gemm::Options{.int8 = decoder_.state().options.int8_products});
    context_.gemm->use_workspace(gemm_workspace_, gemm_workspace_bytes_);
}

template <class T>
void Generator<T>::load(const Values& values) {
    std::vector<float> block(block_floats_);
    for (TensorId id = 0; id < table_.tensors().size(); id++) {
        const Tensor& t = table_[id];
        const auto& to = decoder_.state().weights[id];
        const size_t columns = t.shape.back(), most = block_floats_ / columns * columns;
        for (size_t first = 0, count; first < t.elements; first += count) {
            count = std::min(most, t.elements - first);
            values(t, first, std::span(block).first(count));
            simt::copy_to_device(staging_, block.data(), count * sizeof(float), context_.stream);
            if (to.quantized)
                quantize(to.quantized + first, to.scales + first / columns, staging_, count / columns,
                         static_cast<int>(columns), context_.stream);
            else convert(to.values + first, staging_, count, context_.stream);
            simt::stream_synchronize(context_.stream);  // before the block is filled again
        }
    }
}

template class Generator<float>;
template class Generator<bfloat16>;
