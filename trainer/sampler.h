// sampler.h: draws a token from logits. A draw is a function of (seed, purpose, step, index) alone: sampling never disturbs training.
#pragma once
#include <cstdint>
#include <span>

struct Draw {
    uint64_t seed = 0;
    uint64_t step = 0;   // of training
    uint64_t index = 0;  // of the token in its text
};

// Softmax of logits / temperature, from which one token is drawn; temperature 0 takes the likeliest (the first of equals).
// Error if no logit is finite.
int sample_token(std::span<const float> logits, float temperature, const Draw& draw);
