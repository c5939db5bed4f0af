#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <type_traits>

#include "kernels/quantize.cuh"
#include "kernels/random.cuh"
#include "system/error.h"
#include "trainer/engine/decoder.h"
#include "trainer/engine/generation.cuh"

namespace {

constexpr size_t staging_floats = size_t{1} << 20;  // at least one row of a matrix

size_t size(int n) { return static_cast<size_t>(n); }

// A prompt is padded to one of a few lengths, so that libraries plan few shapes and their scratch is
// known beforehand. The padding follows the last token and, attention being causal, does not influence
// it.
int padded_length(int tokens, int max_tokens) {
    return static_cast<int>(std::min(std::bit_ceil(std::max(size(tokens), size_t{16})), size(max_tokens)));
}
std::vector<int> padded_lengths(int max_tokens) {
    std::vector<int> lengths{padded_length(1, max_tokens)};
    while (lengths.back() < max_tokens) lengths.push_back(padded_length(lengths.back() + 1, max_tokens));
    return lengths;
}

// The activations must hold a prompt, or a token of every sample. On a GPU, cuDNN's planning for a prompt
// would take longer than our own kernel.
ModelOptions options_for(const DecoderOptions& o) {
    const int T = std::max(o.max_tokens, 1);
    return {.B = static_cast<int>(simt::ceil_div(size(std::max(o.samples, 1)), size(T))),
            .T = T,
            .training = false,
            .attention = simt::is_gpu() ? AttentionBackend::kernel : AttentionBackend::automatic};
}

}  // namespace

template <class T>
Decoder<T>::Decoder(std::unique_ptr<Family<T>> family, const DecoderOptions& options)
    : context_(options_for(options)),
      family_(std::move(family)),
      table_(family_->make_table(1)),
      generation_(options) {
    CHECK(options.samples > 0, "{} samples; expected 1 or more", options.samples);
    CHECK(options.max_tokens > 0 && options.max_tokens <= config().context,
          "a cache of {} tokens; expected 1 to the model's context of {}", options.max_tokens,
          config().context);
    family_->attach(context_, table_, generation_);
    reserve();
}

template <class T>
Decoder<T>::~Decoder() {
    context_.gemm.reset();
    if (context_.stream) simt::stream_destroy(context_.stream);
}

// ----------------------------------------------------------------------------------------------------
// memory

template <class T>
void Decoder<T>::reserve() {
    const bool int8 = generation_.options.int8;
    generation_.weights.resize(table_.tensors().size());
    size_t longest_row = 0, largest_matrix = 0;
    for (TensorId id = 0; id < table_.tensors().size(); id++) {
        const Tensor& t = table_[id];
        auto& weight = generation_.weights[id];
        longest_row = std::max(longest_row, t.shape.back());
        if (int8 && t.int8) {
            weights_.reserve(weight.quantized, t.elements);
            weights_.reserve(weight.scales, t.shape[0]);
            if (table_.is_block(t.group)) largest_matrix = std::max(largest_matrix, t.elements);
        } else {
            weights_.reserve(weight.values, t.elements);
        }
    }
    activations_.reserve(context_.tokens, size(context_.options.B) * size(context_.options.T));
    family_->reserve(activations_, workspace_);
    activations_.reserve(logits_, size(samples()) * size(config().Vp()));
    workspace_.reserve(staging_, std::max(staging_floats, longest_row));
    if (int8) workspace_.reserve(generation_.dequantized, largest_matrix);
    workspace_.reserve(gemm_workspace_, gemm_workspace_bytes());
}

// The largest workspace that a product of any prompt needs.
template <class T>
size_t Decoder<T>::gemm_workspace_bytes() const {
    std::set<std::vector<size_t>> shapes;
    for (const Tensor& t : table_.tensors())
        if (t.from_matmul && table_.is_block(t.group)) shapes.insert(t.shape);
    size_t bytes = 0;
    for (const int rows : padded_lengths(max_tokens())) {
        for (const std::vector<size_t>& shape : shapes)
            bytes = std::max(bytes, Gemm::workspace_bytes<T>(size(rows), shape[1], shape[0]));
    }
    return bytes;
}

template <class T>
MemoryPlan Decoder<T>::memory_plan() const {
    MemoryPlan plan;
    for (const Arena* arena : {&weights_, &generation_.cache_memory, &activations_, &workspace_})
        plan.emplace_back(arena->name(), arena->bytes());
    return plan;
}

template <class T>
void Decoder<T>::allocate() {
    context_.stream = simt::stream_create();
    for (Arena* arena : {&weights_, &generation_.cache_memory, &activations_, &workspace_}) {
        if (arena->bytes() > 0) arena->allocate();
    }
    family_->allocated();
    context_.gemm = std::make_unique<Gemm>(Gemm::Options{});
    context_.gemm->use_workspace(gemm_workspace_, gemm_workspace_bytes());
    host_raw_.resize(size(samples()) * size(config().Vp()));
    host_logits_.resize(host_raw_.size());
    host_tokens_.resize(size(context_.options.B) * size(context_.options.T));
}

template <class T>
void Decoder<T>::load(const Values& values) {
    for (TensorId id = 0; id < table_.tensors().size(); id++) {
        const Tensor& t = table_[id];
        std::vector<float> of_tensor = values(t);
        CHECK(of_tensor.size() == t.elements || of_tensor.size() == t.unpadded_elements,
              "{}: {} values; expected {}", t.name, of_tensor.size(), t.unpadded_elements);
        of_tensor.resize(t.elements, 0.0f);
        const auto& to = generation_.weights[id];
        // fp32 values are copied to the device, a block of rows at a time, and converted there.
        const size_t columns = t.shape.back(), rows = t.elements / columns,
                     rows_at_once = std::max<size_t>(1, staging_floats / columns);
        for (size_t row = 0; row < rows; row += rows_at_once) {
            const size_t count = std::min(rows_at_once, rows - row), first = row * columns;
            simt::copy_to_device(staging_, of_tensor.data() + first, count * columns * sizeof(float),
                                 context_.stream);
            if (to.quantized)
                quantize(to.quantized + first, to.scales + row, staging_, count, static_cast<int>(columns),
                         context_.stream);
            else if constexpr (std::is_same_v<T, float>)
                simt::copy_on_device(to.values + first, staging_, count * columns * sizeof(float),
                                     context_.stream);
            else convert(to.values + first, staging_, count * columns, context_.stream);
        }
        simt::stream_synchronize(context_.stream);
    }
}

// ----------------------------------------------------------------------------------------------------
// tokens

template <class T>
const float* Decoder<T>::pass(const std::vector<int>& tokens, int B, int T_, int kept, size_t first,
                              size_t rows) {
    for (const int token : tokens)
        CHECK(token >= 0 && token < config().V, "token {}; expected 0 to {}", token, config().V - 1);
    if (generation_.is_prompt) generation_.length = 0;
    context_.B = B, context_.T = T_;
    std::fill(std::copy(tokens.begin(), tokens.end(), host_tokens_.begin()), host_tokens_.end(), 0);
    simt::copy_to_device(context_.tokens, host_tokens_.data(), context_.rows() * sizeof(int32_t),
                         context_.stream);
    generation_.tokens = kept;
    family_->embed();
    for (int l = 0; l < config().L; l++) family_->block_forward(l);
    generation_.length += kept;
    const Head<T> head = family_->head();
    const size_t C = table_[head.weight].shape[1], Vp = table_[head.weight].shape[0];
    decode_product(logits_, head.input + first * C, generation_.weights[head.weight],
                   static_cast<const T*>(nullptr), {rows, C, Vp}, Activation::none, context_.stream);

    const size_t count = rows * Vp;
    simt::copy_to_host(host_raw_.data(), logits_, count * sizeof(T), context_.stream);
    simt::stream_synchronize(context_.stream);
    for (size_t i = 0; i < count; i++) host_logits_[i] = static_cast<float>(host_raw_[i]);
    return host_logits_.data();
}

template <class T>
const float* Decoder<T>::prefill(const std::vector<int>& prompt) {
    CHECK(!prompt.empty() && prompt.size() <= size(max_tokens()), "a prompt of {} tokens; expected 1 to {}",
          prompt.size(), max_tokens());
    const int tokens = static_cast<int>(prompt.size());
    generation_.is_prompt = true;
    return pass(prompt, 1, padded_length(tokens, max_tokens()), tokens, prompt.size() - 1, 1);
}

template <class T>
const float* Decoder<T>::step(const std::vector<int>& tokens) {
    CHECK(tokens.size() == size(samples()), "{} tokens for {} samples; expected one each", tokens.size(),
          samples());
    CHECK(length() > 0, "a step before the prompt; expected prefill first");
    CHECK(length() < max_tokens(), "the cache is full: it holds {} tokens", max_tokens());
    generation_.is_prompt = false;
    return pass(tokens, samples(), 1, 1, 0, tokens.size());
}

template class Decoder<float>;
template class Decoder<bfloat16>;
