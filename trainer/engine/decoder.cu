#include <algorithm>
#include <bit>
#include <set>

#include "kernels/capped_cross_entropy.cuh"
#include "kernels/decode/decode_sample.cuh"
#include "system/error.h"
#include "trainer/engine/decoder.h"
#include "trainer/engine/generation.cuh"

namespace {

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

}  // namespace

template <class T>
Decoder<T>::Decoder(Context& context, Family<T>& family, const TensorTable& table, Arena& cache,
                    const DecoderOptions& options)
    : context_(context),
      family_(family),
      table_(table),
      state_{options, cache},
      graphs_(size(simt::ceil_div(std::max(options.max_tokens, 1), decode_chunk)), context.options.graphs) {
    CHECK(options.samples > 0, "{} samples; expected 1 or more", options.samples);
    CHECK(options.max_tokens > 0 && options.max_tokens <= config().context,
          "a cache of {} tokens; expected 1 to the model's context of {}", options.max_tokens,
          config().context);
    state_.weights.resize(table.tensors().size());
}

template <class T>
void Decoder<T>::reserve(Arena& activations) {
    inputs_.resize(1 + std::max(size(samples()), size(max_tokens())));
    activations.reserve(state_.before, inputs_.size());
    activations.reserve(logits_, size(samples()) * Vp());
    activations.reserve(drawn_, size(samples()));
}

template <class T>
size_t Decoder<T>::gemm_workspace_bytes() const {
    std::set<std::array<size_t, 2>> shapes;
    for (TensorId id = 0; id < table_.tensors().size(); id++) {
        const Tensor& t = table_[id];
        if (t.from_matmul && !t.joined && table_.is_block(t.group)) shapes.insert(table_.matrix(id));
    }
    size_t bytes = 0;
    for (const int rows : padded_lengths(max_tokens())) {
        for (const std::array<size_t, 2>& shape : shapes)
            bytes = std::max(bytes, Gemm::workspace_bytes<T>(size(rows), shape[1], shape[0]));
    }
    return bytes;
}

template <class T>
void Decoder<T>::pass(const std::vector<int>& tokens, bool is_prompt) {
    for (const int token : tokens)
        CHECK(token >= 0 && token < config().V, "token {}; expected 0 to {}", token, config().V - 1);
    state_.is_prompt = is_prompt;
    state_.tokens = is_prompt ? static_cast<int>(tokens.size()) : 1;
    if (is_prompt) state_.length = 0;
    context_.B = is_prompt ? 1 : samples();
    context_.T = is_prompt ? padded_length(state_.tokens, max_tokens()) : 1;
    const size_t first = is_prompt ? tokens.size() - 1 : 0;  // row of the head's input that has logits
    const stream_t stream = context_.stream;
    simt::stream_synchronize(stream);  // the last pass has read inputs_
    inputs_[0] = length();
    std::fill(std::copy(tokens.begin(), tokens.end(), inputs_.begin() + 1), inputs_.end(), 0);
    simt::copy_to_device(state_.before, inputs_.data(), (1 + context_.rows()) * sizeof(int), stream);
    const int chunks = simt::ceil_div(length() + state_.tokens, decode_chunk);
    state_.most = std::min(chunks * decode_chunk, max_tokens());
    const auto work = [&] {
        family_.embed();
        for (int l = 0; l < config().L; l++) family_.block_forward(l);
        const Head<T> head = family_.head();
        const size_t C = table_[head.weight].shape[1];
        decode_product(logits_, head.input + first * C, state_.weights[head.weight],
                       static_cast<const T*>(nullptr), {rows(), C, Vp()}, Activation::none, stream);
        if (head.cap > 0) cap_logits(logits_, rows() * Vp(), head.cap, stream);
    };
    // The family trains or evaluates again afterwards, also if an operation throws.
    struct Active {
        bool& active;
        explicit Active(bool& active) : active(active) { active = true; }
        ~Active() { active = false; }
    };
    const Active active(state_.active);
    if (is_prompt || context_.profile.measuring()) work();
    else graphs_.run(size(chunks) - 1, stream, work);
    state_.length += state_.tokens;
    context_.profile.end(stream);
}

template <class T>
void Decoder<T>::prefill(const std::vector<int>& prompt) {
    CHECK(!prompt.empty() && prompt.size() <= size(max_tokens()), "a prompt of {} tokens; expected 1 to {}",
          prompt.size(), max_tokens());
    pass(prompt, true);
}

template <class T>
void Decoder<T>::step(const std::vector<int>& tokens) {
    CHECK(tokens.size() == size(samples()), "{} tokens for {} samples; expected one each", tokens.size(),
          samples());
    CHECK(length() > 0, "a step before the prompt; expected prefill first");
    CHECK(length() < max_tokens(), "the cache is full: it holds {} tokens", max_tokens());
    pass(tokens, false);
}

template <class T>
std::vector<int> Decoder<T>::draw(const Sampling& sampling, const Draw& first, int count, int V) {
    CHECK(length() > 0, "a draw before the prompt; expected prefill first");
    CHECK(count > 0 && count <= samples() && V <= config().V,
          "{} draws of {} ids; expected up to {} of up to {}", count, V, samples(), config().V);
    decode_sample(drawn_, SampledRows<T>{logits_, state_.is_prompt ? 0 : Vp(), V, count}, sampling, first,
                  context_.stream);
    std::vector<int> tokens(size(count));
    simt::copy_to_host(tokens.data(), drawn_, tokens.size() * sizeof(int), context_.stream);
    simt::stream_synchronize(context_.stream);
    return tokens;
}

template class Decoder<float>;
template class Decoder<bfloat16>;
