// generate_options.h: the command line of generate_gpt2.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/inference/sampler.h"
#include "trainer/model/dtype.h"

struct GenerateCommand {
    std::string checkpoint;             // open_model() opens it
    std::string tokenizer;              // empty: the model's
    std::string prompt;                 // empty: from the token that starts a text
    std::vector<int> tokens;            // the prompt as tokens, if there are any
    int max_tokens = 256, samples = 1;  // of each, new ones
    Sampling sampling;                  // --greedy: temperature 0
    uint64_t seed = 1337;
    bool int8 = false, json = false;
    bool best = false;             // of a run, the checkpoint with the lowest validation loss
    bool stop_at_context = false;  // else the text goes on in a window that slides
    bool interactive = false;      // a prompt a line from standard input
    DType dtype = DType::fp32;
};

// UsageError in one line for anything wrong. std::nullopt: --help or --version was printed and there is
// nothing to run.
std::optional<GenerateCommand> parse_generate_command(int argc, const char* const* argv);
