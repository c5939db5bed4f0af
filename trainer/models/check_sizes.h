// check_sizes.h: what every family asks of a shape
#pragma once
#include "system/error.h"
#include "trainer/engine/model_config.h"
#include "trainer/tokenizer/token.h"

// UsageError for a size that no family accepts.
inline void check_sizes(const ModelConfig& c) {
    CHECK(c.V > 0, "a vocabulary of {} tokens; expected 1 or more", c.V);
    CHECK(c.V <= max_vocab_size, "a vocabulary of {} tokens; expected at most {}", c.V, max_vocab_size);
    CHECK(c.context > 0, "a context of {} tokens; expected 1 or more", c.context);
    CHECK(c.L > 0, "{} layers; expected 1 or more", c.L);
    CHECK(c.NH > 0, "{} heads; expected 1 or more", c.NH);
    CHECK(c.C > 0, "{} channels; expected 1 or more", c.C);
}
