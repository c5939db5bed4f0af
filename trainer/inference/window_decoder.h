// window_decoder.h: predicts one token at a time by a whole forward pass over the last tokens, without a
// cache.
//   It is slow, but it needs no memory beyond the model's, and the text may be longer than the context.
//   Training draws its samples with it, and the decoder with a cache (decoder.h) is tested against it.
#pragma once
#include <vector>

#include "trainer/model/gpt2.h"

template <class T>
class WindowDecoder {
public:
    // Uses at most the last `window` tokens; the model must be allocated for that many.
    WindowDecoder(GPT2<T>& model, int window) : model_(model), window_(static_cast<size_t>(window)) {}

    // Logits (V) of the token after the prompt, for one text only (the samples of generate() must be 1).
    const float* prefill(const std::vector<int>& prompt) {
        tokens_ = prompt;
        return predict();
    }
    const float* step(const std::vector<int>& token) {
        tokens_.push_back(token.at(0));
        return predict();
    }

private:
    const float* predict() {
        if (tokens_.size() > window_)
            tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(window_));
        logits_ = model_.next_token_logits(tokens_);
        return logits_.data();
    }

    GPT2<T>& model_;
    const size_t window_;
    std::vector<int> tokens_;
    std::vector<float> logits_;
};
