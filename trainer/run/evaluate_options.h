// evaluate_options.h: the command line of evaluate_gpt2.
#pragma once
#include <optional>
#include <string>

#include "kernels/attention/attention.h"
#include "trainer/engine/dtype.h"

struct EvaluateOptions {
    std::string checkpoint;
    std::string val_data;          // empty: the loss is not measured
    std::string hellaswag;         // empty: HellaSwag is not scored
    std::string hellaswag_scores;  // empty: no file with every example's log-likelihoods
    std::string tokenizer;         // empty: the model's
    int batch_size = 4;
    int seq_len = 0;    // 0: the model's context
    int val_steps = 0;  // 0: the whole split
    bool int8 = false;  // evaluate the weights rounded to int8
    bool json = false;
    bool best = false;  // of a run, take the checkpoint with the lowest validation loss
    DType dtype = DType::fp32;
    AttentionBackend attention = AttentionBackend::automatic;
};

// Throws a one-line UsageError for anything wrong. std::nullopt: --help or --version was printed and
// there is nothing to do.
std::optional<EvaluateOptions> parse_evaluate_options(int argc, const char* const* argv);
