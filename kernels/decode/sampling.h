// sampling.h: how a token is drawn from logits
//   With temperature 0, it is the likeliest token. Otherwise it is drawn from softmax(logits /
//   temperature), restricted first to the top_k likeliest tokens and then to the fewest likeliest of these
//   whose renormalised probabilities sum to at least top_p, but at least one (nucleus sampling: Holtzman et
//   al. 2020, arXiv:1904.09751). The order is that of the warpers in Hugging Face's transformers. Among
//   equally likely tokens the first ones are kept, so at most top_k tokens remain, always the same ones.
// A draw is a function of (seed, step, sample, index) alone, so sampling affects neither training nor other
// texts.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/simt/host_device.h"
#include "kernels/simt/philox.h"
#include "system/error.h"

struct Sampling {
    double temperature = 1;
    int top_k = 0;     // 0: all tokens
    double top_p = 1;  // 1: all tokens
};

struct Draw {
    uint64_t seed = 0;
    uint64_t step = 0;    // step of training, from 1; 0 outside of training
    uint64_t index = 0;   // index of the token in its text
    uint64_t sample = 0;  // number of the text among those generated together, below 65,536
};

// UsageError unless temperature >= 0, top_k >= 0 and 0 < top_p <= 1.
inline void check(const Sampling& sampling) {
    CHECK(sampling.temperature >= 0 && std::isfinite(sampling.temperature),
          "a temperature of {}; expected a number of at least 0", sampling.temperature);
    CHECK(sampling.top_k >= 0, "a top-k of {}; expected 0 (all tokens) or more", sampling.top_k);
    CHECK(sampling.top_p > 0 && sampling.top_p <= 1, "a top-p of {}; expected 0 < p <= 1", sampling.top_p);
}

// The draw's random number, uniform in [0, 1).
HOST_DEVICE inline double uniform(const Draw& draw) {
    // The counter's last word, which is 0 for weights (random.cuh) and the data's order (permutation.h).
    constexpr uint32_t sampling_purpose = 1;
    const Philox4 counter{{static_cast<uint32_t>(draw.index), static_cast<uint32_t>(draw.step),
                           static_cast<uint32_t>(draw.step >> 32),
                           sampling_purpose | static_cast<uint32_t>(draw.sample) << 16}};
    const Philox4 bits =
        philox4x32_10(counter, static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32));
    return static_cast<double>((static_cast<uint64_t>(bits.x[0]) << 21) ^ (bits.x[1] >> 11)) * 0x1p-53;
}
