// decoder.h: a model generates one token at a time, several samples side by side. The keys and values of all
// earlier tokens are kept in a cache.
//   Decoder<bfloat16> decoder(make_family<bfloat16>(config), {.samples = 4, .max_tokens = 256});
//   decoder.allocate();
//   decoder.load([&](const Tensor& tensor) { return file.values(tensor); });
//   const float* logits = decoder.prefill(prompt);  // one row, for all samples
//   for (...) logits = decoder.step(tokens);        // in: a token a sample; out: a row of logits a sample
//   A step reads each weight once for all samples, and each sample's cache. T, the type of weights and
//   activations, is float or bfloat16, with the same roundings as training's forward pass, whose blocks these
//   are. With int8 the matrices (the embedding included) are int8 with one scale for each output channel
//   (quantize.cuh), which is a quarter or half of the bytes; everything else stays T.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trainer/engine/family.h"
#include "trainer/engine/generation.h"
#include "trainer/engine/model.h"

template <class T>
class Decoder {
public:
    // fp32 values of a tensor, in the table's layout, with or without padding.
    using Values = std::function<std::vector<float>(const Tensor&)>;

    // Plans the memory and allocates nothing. UsageError for impossible shapes (the family's,
    // max_tokens > context, samples < 1).
    Decoder(std::unique_ptr<Family<T>> family, const DecoderOptions& options);
    ~Decoder();
    Decoder(const Decoder&) = delete;

    const ModelConfig& config() const { return family_->config(); }
    MemoryPlan memory_plan() const;
    // Allocates what the plan says; nothing is allocated afterwards. Error if memory cannot be allocated.
    void allocate();
    void load(const Values& values);

    // Starts again with a prompt of 1 to max_tokens tokens, which all samples share and which takes one
    // pass. Returns the logits (Vp) of the token that follows, in host memory, valid until the next call.
    // Entries from V on are padding. UsageError for an empty or too long prompt and for a token outside
    // the vocabulary.
    const float* prefill(const std::vector<int>& prompt);
    // Appends tokens[k] to sample k. Returns the logits (samples, Vp) of the tokens that follow, as
    // prefill does. UsageError if the cache is full, before prefill(), and for wrong tokens or a wrong
    // number of them.
    const float* step(const std::vector<int>& tokens);

    int length() const { return generation_.length; }  // tokens in the cache
    int samples() const { return generation_.options.samples; }
    int max_tokens() const { return generation_.options.max_tokens; }

private:
    void reserve();
    size_t gemm_workspace_bytes() const;
    // A pass over the blocks: B sequences of T tokens of which `kept` enter the cache. Returns the logits of
    // `rows` rows of the head's input, from `first` on.
    const float* pass(const std::vector<int>& tokens, int B, int T_, int kept, size_t first, size_t rows);

    Context context_;
    const std::unique_ptr<Family<T>> family_;
    const TensorTable table_;
    GenerationState<T> generation_;
    Arena weights_{"weights"}, activations_{"activations"}, workspace_{"workspace"};

    T* logits_ = nullptr;
    float* staging_ = nullptr;  // fp32 weights on their way to the device's format
    std::byte* gemm_workspace_ = nullptr;
    std::vector<int32_t> host_tokens_;
    std::vector<T> host_raw_;
    std::vector<float> host_logits_;
};

extern template class Decoder<float>;
extern template class Decoder<bfloat16>;
