// gpt2_config.h: the shape of a GPT-2, and the floating-point operations that training it takes.
#pragma once
#include <string>

struct GPT2Config {
    int V = 256;       // vocabulary
    int context = 64;  // longest sequence
    int L = 4;         // layers
    int NH = 4;        // heads
    int C = 128;       // channels

    int HS() const { return C / NH; }
    // Rows of wte. Padded logits get no probability, and their rows no gradient.
    int Vp() const { return (V + 127) / 128 * 128; }

    // UsageError if a size is not positive, C is not a multiple of NH, or a head is longer than 128.
    void check() const;
    // "d12", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3:c768", ...; UsageError for another
    // name lists all of them.
    static GPT2Config named(const std::string& name);
};

// Floating-point operations a token, forward and backward: 6 for each parameter, and 6 L C T for causal
// attention.
double flops_per_token(const GPT2Config& config, int seq_len);
