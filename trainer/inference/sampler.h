// sampler.h: draws a token from logits.
//   The likeliest token (temperature 0), or one drawn from softmax(logits / temperature), of which first the
//   top_k likeliest are kept and then, of their softmax, the fewest likeliest whose probability is at least
//   top_p, but always one (nucleus sampling: Holtzman et al.
//   2020, arXiv:1904.09751). The order is that of the warpers in Hugging Face's transformers. Of equally
//   likely tokens the first is kept:
//   at most top_k tokens remain, always the same ones.
// A draw is a function of (seed, step, sample, index) alone: sampling never disturbs training, nor one text
// another.
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
    uint64_t step = 0;    // of training, from 1; 0 outside of it
    uint64_t index = 0;   // of the token in its text
    uint64_t sample = 0;  // which of the texts that are drawn together, below 65,536
};

// UsageError if a setting is out of range: temperature, top_k >= 0, 0 < top_p <= 1.
void check(const Sampling& sampling);

// The id of the token drawn. A logit of minus infinity is never drawn; Error if another is not finite, or all
// are minus infinity.
int sample_token(std::span<const float> logits, const Sampling& sampling, const Draw& draw);
