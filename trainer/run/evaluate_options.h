// evaluate_options.h: the command line of evaluate_gpt2.
#pragma once
#include <optional>
#include <string>

#include "kernels/attention/attention.h"
#include "trainer/model/dtype.h"

struct EvaluateOptions {
    std::string checkpoint;
    std::string val_data;          // empty: no loss
    std::string hellaswag;         // empty: no HellaSwag
    std::string hellaswag_scores;  // empty: no file with every example's log-likelihoods
    std::string tokenizer;         // empty: the model's
    int batch_size = 4;
    int seq_len = 0;    // 0: the model's context
    int val_steps = 0;  // 0: the whole split
    bool int8 = false;  // the loss of the weights as int8
    bool json = false;
    bool best = false;  // of a run, the checkpoint with the lowest validation loss
    DType dtype = DType::fp32;
    AttentionBackend attention = AttentionBackend::automatic;
};

// UsageError in one line for anything wrong. std::nullopt: --help or --version was printed and there is
// nothing to run.
std::optional<EvaluateOptions> parse_evaluate_options(int argc, const char* const* argv);
