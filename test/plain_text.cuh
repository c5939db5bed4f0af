// plain_text.cuh: the tokens that generate() must draw, each by the plain sampler from a whole forward pass
#pragma once
#include "model.cuh"
#include "plain_sampler.h"

namespace plain {

// `count` tokens that follow the prompt. Each pass reads the last `window` tokens.
template <class T>
std::vector<int> text(Model<T>& model, const std::vector<int>& prompt, size_t count, size_t window,
                      const Sampling& sampling, Draw draw) {
    GPT2<double> copy = plain_copy<double>(model);
    std::vector<int> tokens = prompt;
    for (; draw.index < count; draw.index++) {
        const auto read = static_cast<std::ptrdiff_t>(std::min(tokens.size(), window));
        const std::vector<int> last(tokens.end() - read, tokens.end());
        copy.forward(last, last, last.size());
        const std::vector<double>& all = copy.activations["logits"];
        tokens.push_back(
            sample_tokens(std::vector<float>(all.end() - model.config().V, all.end()), sampling, draw, 1)[0]);
    }
    return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

}  // namespace plain
