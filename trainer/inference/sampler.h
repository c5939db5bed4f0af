// sampler.h: draws a token from logits.
//   With temperature 0, it is the likeliest token. Otherwise it is drawn from softmax(logits /
//   temperature), restricted first to the top_k likeliest tokens and then to the fewest likeliest of these
//   whose renormalised probabilities sum to at least top_p, but at least one (nucleus sampling: Holtzman et
//   al. 2020, arXiv:1904.09751). The order is that of the warpers in Hugging Face's transformers. Among
//   equally likely tokens the first ones are kept, so at most top_k tokens remain, always the same ones.
// A draw is a function of (seed, step, sample, index) alone, so sampling affects neither training nor other
// texts.
#pragma once
#include <cstdint>
#include <span>

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
void check(const Sampling& sampling);

// Draws a token and returns its id. A token whose logit is minus infinity is never drawn. Error if any
// other logit is not finite, or if all are minus infinity.
int sample_token(std::span<const float> logits, const Sampling& sampling, const Draw& draw);
