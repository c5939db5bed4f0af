// decoder.h: a family's blocks generate one token at a time, several samples side by side. Keys and values
// of all earlier tokens are kept in a cache.
//   decoder.prefill(prompt);  // logits: one row, for all samples
//   for (...) decoder.step(decoder.draw(...));  // logits: a row for each sample
//   Logits stay on the device, where tokens are drawn from them. A step is one CUDA graph. It reads each
//   weight once for all samples, and each sample's cache. T, the type of weights and activations, is float or
//   bfloat16, with the same roundings as training's forward pass, whose blocks these are. The weights and the
//   memory are those of a Generator, or of a Model between two steps.
#pragma once
#include <vector>

#include "kernels/decode/sampling.h"
#include "trainer/engine/family.h"
#include "trainer/engine/generation.h"
#include "trainer/engine/step_graphs.h"

template <class T>
class Decoder {
public:
    // Everything but the options must outlive the decoder. UsageError for max_tokens > context and for
    // samples < 1.
    Decoder(Context& context, Family<T>& family, const TensorTable& table, Arena& cache,
            const DecoderOptions& options);
    Decoder(const Decoder&) = delete;

    // Whoever owns the family attaches this to it and sets the weights.
    GenerationState<T>& state() { return state_; }
    void reserve(Arena& activations);
    // The largest workspace that a product of any prompt needs.
    size_t gemm_workspace_bytes() const;

    // Starts again with a prompt of 1 to max_tokens tokens, which all samples share and which takes one
    // pass. UsageError for an empty or too long prompt and for a token outside the vocabulary.
    void prefill(const std::vector<int>& prompt);
    // Appends tokens[k] to sample k. UsageError if the cache is full, before prefill(), and for wrong tokens
    // or a wrong number of them.
    void step(const std::vector<int>& tokens);
    // Draws the tokens that follow in samples first.sample .. first.sample + count - 1, of the ids below V.
    // After step(), first.sample is 0. -1 stands for a row of logits that are not finite.
    std::vector<int> draw(const Sampling& sampling, const Draw& first, int count, int V);
    // Logits (rows, Vp) of the tokens that follow, for tests. Entries from V on are padding.
    std::vector<float> logits() const { return to_host(logits_, rows() * Vp(), context_.stream); }

    const ModelConfig& config() const { return family_.config(); }
    int length() const { return state_.length; }  // tokens in the cache
    int samples() const { return state_.options.samples; }
    int max_tokens() const { return state_.options.max_tokens; }

private:
    // A pass over the blocks, of a prompt or of one token of each sample.
    void pass(const std::vector<int>& tokens, bool is_prompt);
    size_t rows() const { return state_.is_prompt ? 1 : static_cast<size_t>(samples()); }  // of logits
    size_t Vp() const { return static_cast<size_t>(config().Vp()); }

    Context& context_;
    Family<T>& family_;
    const TensorTable& table_;
    GenerationState<T> state_;
    T* logits_ = nullptr;
    int* drawn_ = nullptr;
    std::vector<int> inputs_;  // the host's copy of state_.before
    Graphs graphs_;            // a step, by the number of chunks that attention processes
};

extern template class Decoder<float>;
extern template class Decoder<bfloat16>;
