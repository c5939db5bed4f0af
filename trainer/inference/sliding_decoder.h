// sliding_decoder.h: texts longer than the context, from a decoder with a cache (decoder.h). While the
//   texts fit into its window, a step is the decoder's own. After that, every token is predicted by a pass
//   over the last `window` tokens, as in window_decoder.h: position embeddings are absolute, so all keys
//   and values change when the window moves.
#pragma once
#include <algorithm>
#include <vector>

template <class Decoder>
class SlidingDecoder {
public:
    // padded_vocabulary: logits per text.
    SlidingDecoder(Decoder& decoder, int window, int padded_vocabulary)
        : decoder_(decoder),
          window_(static_cast<size_t>(window)),
          row_(static_cast<size_t>(padded_vocabulary)) {}

    // Of a prompt that is longer than the window, only the end is used.
    const float* prefill(const std::vector<int>& prompt) {
        const size_t samples = static_cast<size_t>(decoder_.samples());
        texts_.assign(samples, prompt);
        ended_.assign(samples, false);
        return decoder_.prefill(last(prompt));
    }
    const float* step(const std::vector<int>& tokens) {
        for (size_t k = 0; k < texts_.size(); k++) texts_[k].push_back(tokens[k]);
        if (texts_[0].size() <= window_) return decoder_.step(tokens);
        logits_.resize(texts_.size() * row_);
        for (size_t k = 0; k < texts_.size(); k++) {
            if (!ended_[k]) std::copy_n(decoder_.prefill(last(texts_[k])), row_, &logits_[k * row_]);
        }
        return logits_.data();
    }
    // Sample k needs no more logits.
    void end(size_t k) { ended_[k] = true; }

private:
    std::vector<int> last(const std::vector<int>& text) const {
        return {text.end() - static_cast<std::ptrdiff_t>(std::min(text.size(), window_)), text.end()};
    }

    Decoder& decoder_;
    size_t window_, row_;
    std::vector<std::vector<int>> texts_;  // tokens of each sample, with the prompt
    std::vector<bool> ended_;
    std::vector<float> logits_;
};
