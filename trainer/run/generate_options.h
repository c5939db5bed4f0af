// generate_options.h: the command line of generate_gpt2.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/decode/sampling.h"
#include "trainer/engine/dtype.h"

struct GenerateCommand {
    std::string checkpoint;             // as open_model() takes it
    std::string tokenizer;              // empty: the model's
    std::string prompt;                 // empty: start with the token that begins a text
    std::vector<int> tokens;            // the prompt as token ids; empty: none given
    int max_tokens = 256, samples = 1;  // max_tokens: new tokens in each sample
    Sampling sampling;                  // --greedy: temperature 0
    uint64_t seed = 1337;
    bool int8 = false, json = false;
    bool best = false;             // of a run, take the checkpoint with the lowest validation loss
    bool stop_at_context = false;  // false: the text continues in a sliding window
    bool interactive = false;      // read one prompt per line from standard input
    DType dtype = DType::fp32;
};

// Throws a one-line UsageError for anything wrong. std::nullopt: --help or --version was printed and
// there is nothing to do.
std::optional<GenerateCommand> parse_generate_command(int argc, const char* const* argv);
