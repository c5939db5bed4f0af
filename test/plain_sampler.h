// plain_sampler.h: draws a token as kernels/decode/sampling.h says, with all tokens sorted and in double
// precision: the oracle of decode_sample.cuh, and the sampler of decoders that exist for a test.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/decode/sampling.h"

namespace plain {

// The weights of the tokens that remain after top-k and top-p; the likeliest one weighs 1.
inline std::vector<double> token_weights(std::span<const float> logits, const Sampling& sampling) {
    std::vector<size_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), size_t{0});
    std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    if (sampling.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(sampling.top_k)));
    std::vector<double> weights(logits.size(), 0.0);
    const double largest = static_cast<double>(logits[ids[0]]);
    for (const size_t id : ids)
        weights[id] = std::exp((static_cast<double>(logits[id]) - largest) / sampling.temperature);
    if (sampling.top_p >= 1) return weights;
    const double wanted = sampling.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
    double before = 0;
    for (const size_t id : ids) {
        const double own = weights[id];
        if (before > 0 && before >= wanted) weights[id] = 0;
        before += own;
    }
    return weights;
}

// The tokens of `count` samples, from draw.sample on, drawn from one row of logits, which are finite or minus
// infinity.
inline std::vector<int> sample_tokens(std::span<const float> logits, const Sampling& sampling, Draw draw,
                                      size_t count) {
    if (sampling.temperature <= 0) {
        const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
        return std::vector<int>(count, static_cast<int>(likeliest));
    }
    std::vector<double> sums = token_weights(logits, sampling);
    std::partial_sum(sums.begin(), sums.end(), sums.begin());
    std::vector<int> tokens;
    for (; tokens.size() < count; draw.sample++)
        tokens.push_back(static_cast<int>(
            std::upper_bound(sums.begin(), sums.end(), uniform(draw) * sums.back()) - sums.begin()));
    return tokens;
}

}  // namespace plain
