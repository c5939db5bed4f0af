// sample_text.h: generates a text sample from the model during training.
#pragma once
#include <algorithm>
#include <string>

#include "system/stop_signal.h"
#include "trainer/inference/generate.h"
#include "trainer/model/gpt2.h"
#include "trainer/run/options.h"
#include "trainer/tokenizer/tokenizer.h"

// Text drawn from the model's distribution at temperature 1. It may be longer than the context.
template <class T>
std::string sample_text(GPT2<T>& model, const Tokenizer& tokenizer, const Options& o, int step) {
    const int start = tokenizer.end_of_text().value_or('\n');
    WithoutCache<GPT2<T>> decoder{model};
    std::string text;
    const auto append = [&](int, int token) {
        if (!tokenizer.ends_text(token)) text += tokenizer.token_bytes(token);
    };
    generate(decoder, {start < o.model.config.V ? start : 0},
             {.max_tokens = o.evaluation.sample_tokens,
              // the model's vocabulary may be larger than the tokenizer's
              .vocabulary = std::min(tokenizer.vocab_size(), o.model.config.V),
              .window = o.batch.seq_len,
              .ends = tokenizer.ends(),
              .seed = o.system.seed,
              .step = static_cast<uint64_t>(step)},
             append, stop_requested);
    return text;
}
