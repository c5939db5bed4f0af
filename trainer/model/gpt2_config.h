// gpt2_config.h: the shape of a GPT-2, and the operations that training it takes.
#pragma once
#include <string>

struct GPT2Config {
    int V = 256;       // vocabulary
    int context = 64;  // longest sequence
    int L = 4;         // layers
    int NH = 4;        // heads
    int C = 128;       // channels

    int HS() const { return C / NH; }
    // rows of wte: padded logits never get probability, their rows no gradient
    int Vp() const { return (V + 127) / 128 * 128; }

    // UsageError if a size is not positive, C is not a multiple of NH, or a head is longer than 128.
    void check() const;
    // "d12", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3:c768", ...; UsageError names those there
    // are.
    static GPT2Config named(const std::string& name);
};

// Operations a token: forward and backward, of which the weights' products are 6 a parameter, and causal
// attention 6 L C T.
double flops_per_token(const GPT2Config& config, int seq_len);
