#include "trainer/inference/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/simt/philox.h"
#include "system/error.h"

namespace {

// The counter's last word, which is 0 for weights (random.cuh) and the data's order (permutation.h).
constexpr uint32_t sampling_purpose = 1;

// Uniform in [0, 1).
double uniform(const Draw& draw) {
    const Philox4 counter{{static_cast<uint32_t>(draw.index), static_cast<uint32_t>(draw.step),
                           static_cast<uint32_t>(draw.step >> 32),
                           sampling_purpose | static_cast<uint32_t>(draw.sample) << 16}};
    const Philox4 bits =
        philox4x32_10(counter, static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32));
    return static_cast<double>((static_cast<uint64_t>(bits.x[0]) << 21) ^ (bits.x[1] >> 11)) * 0x1p-53;
}

size_t likeliest_token(std::span<const float> logits) {
    size_t best = 0;
    bool finite = !logits.empty();
    for (size_t i = 0; i < logits.size(); i++) {
        finite &= logits[i] < std::numeric_limits<float>::infinity();  // false for NaN
        if (logits[i] > logits[best]) best = i;
    }
    if (!finite || !std::isfinite(logits[best])) throw Error("sampling: the model's logits are not finite");
    return best;
}

// Sets the weights of all tokens that top_k and top_p exclude to 0.
void keep_likeliest(std::vector<double>& weights, const Sampling& sampling) {
    const size_t V = weights.size();
    std::vector<uint32_t> ids(V);
    std::iota(ids.begin(), ids.end(), 0u);
    const auto likelier = [&](uint32_t a, uint32_t b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
    };
    const auto at = [&](size_t n) { return ids.begin() + static_cast<std::ptrdiff_t>(n); };
    const auto leave_out = [&](size_t from) {
        std::for_each(at(from), ids.end(), [&](uint32_t id) { weights[id] = 0; });
    };

    size_t kept = V;
    if (sampling.top_k > 0 && static_cast<size_t>(sampling.top_k) < V) {
        kept = static_cast<size_t>(sampling.top_k);
        std::nth_element(ids.begin(), at(kept), ids.end(), likelier);
        leave_out(kept);
    }
    if (sampling.top_p >= 1) return;
    const double wanted = sampling.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
    double mass = 0;
    size_t count = 0, sorted = 0;  // a nucleus is usually small, so only as much as it needs is sorted
    while (count < kept && mass < wanted) {
        if (count == sorted) {
            sorted = std::min(kept, std::max<size_t>(64, 8 * count));
            if (sorted < kept) std::nth_element(at(count), at(sorted), at(kept), likelier);
            std::sort(at(count), at(sorted), likelier);
        }
        mass += weights[ids[count++]];
    }
    leave_out(std::max<size_t>(count, 1));
}

}  // namespace

void check(const Sampling& sampling) {
    CHECK(sampling.temperature >= 0 && std::isfinite(sampling.temperature),
          "a temperature of {}; expected a number of at least 0", sampling.temperature);
    CHECK(sampling.top_k >= 0, "a top-k of {}; expected 0 (all tokens) or more", sampling.top_k);
    CHECK(sampling.top_p > 0 && sampling.top_p <= 1, "a top-p of {}; expected 0 < p <= 1", sampling.top_p);
}

int sample_token(std::span<const float> logits, const Sampling& sampling, const Draw& draw) {
    const size_t likeliest = likeliest_token(logits);
    if (sampling.temperature <= 0) return static_cast<int>(likeliest);
    std::vector<double> weights(logits.size());
    for (size_t i = 0; i < logits.size(); i++) {
        weights[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[likeliest])) /
                              sampling.temperature);
    }
    if (sampling.top_k > 0 || sampling.top_p < 1) keep_likeliest(weights, sampling);
    std::vector<double>& cumulative = weights;
    std::partial_sum(weights.begin(), weights.end(), cumulative.begin());
    const auto chosen =
        std::upper_bound(cumulative.begin(), cumulative.end(), uniform(draw) * cumulative.back());
    return static_cast<int>(chosen == cumulative.end() ? likeliest
                                                       : static_cast<size_t>(chosen - cumulative.begin()));
}
