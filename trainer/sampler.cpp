#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "error.h"
#include "simt/philox.h"

namespace {

constexpr uint32_t sampling_purpose = 1;  // the weights' purposes start at 1 << 16

// Uniform in [0, 1).
double uniform(const Draw& draw) {
    const Philox4 counter{
        {static_cast<uint32_t>(draw.index), static_cast<uint32_t>(draw.step), static_cast<uint32_t>(draw.step >> 32), sampling_purpose}};
    const Philox4 bits = philox4x32_10(counter, static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32));
    return static_cast<double>((static_cast<uint64_t>(bits.x[0]) << 21) ^ (bits.x[1] >> 11)) * 0x1p-53;
}

}  // namespace

int sample_token(std::span<const float> logits, float temperature, const Draw& draw) {
    const auto best = std::max_element(logits.begin(), logits.end(), [](float a, float b) { return !(a >= b) && !std::isnan(b); });
    if (best == logits.end() || !std::isfinite(*best)) throw Error("sampling: the model's logits are not finite");
    const int likeliest = static_cast<int>(best - logits.begin());
    if (temperature <= 0) return likeliest;
    double sum = 0;
    std::vector<double> cumulative(logits.size());
    for (size_t i = 0; i < logits.size(); i++) {
        const double weight = std::exp((static_cast<double>(logits[i]) - static_cast<double>(*best)) / static_cast<double>(temperature));
        sum += std::isnan(weight) ? 0 : weight;
        cumulative[i] = sum;
    }
    const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform(draw) * sum);
    return chosen == cumulative.end() ? likeliest : static_cast<int>(chosen - cumulative.begin());
}
