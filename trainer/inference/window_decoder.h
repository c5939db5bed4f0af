// window_decoder.h: predicts from the last tokens by the whole forward pass, a token at a time and without a
// cache.
//   Slow, but it needs no memory beyond the model's and the text may be longer than the context: samples in
//   training, and what the decoder with a cache (decoder.h) is tested against.
#pragma once
#include <vector>

#include "trainer/model/gpt2.h"

template <class T>
class WindowDecoder {
public:
    // Sees at most `window` tokens back, which the model was allocated for.
    WindowDecoder(GPT2<T>& model, int window) : model_(model), window_(static_cast<size_t>(window)) {}

    // Logits (V) of the token after the prompt; for one text (the samples of generate() must be 1).
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
