// model_config.h: the numbers that describe a model's shape. Which of them a family uses, and which values it
// accepts beyond check_sizes, is said in its folder under trainer/models/.
#pragma once
#include <string_view>

#include "system/error.h"
#include "trainer/tokenizer/token.h"

// The ranges of options and of files; a value out of them is no model that anyone trains.
constexpr double least_rope_theta = 1, most_rope_theta = 1e30, least_norm_eps = 1e-30, most_norm_eps = 1;

struct ModelConfig {
    int V = 256;                       // vocabulary
    int context = 64;                  // longest sequence
    int L = 4;                         // blocks
    int NH = 4;                        // heads
    int C = 128;                       // channels
    std::string_view family = "gpt2";  // a name of trainer/models/families.h
    // Not every family has these; 0 where it has not.
    int NKV = 0;            // heads of keys and values
    int H = 0;              // width of the MLP
    int head_size = 0;      // 0: C / NH
    double rope_theta = 0;  // base of rotary position embeddings
    double norm_eps = 0;    // added to variances; 0: 1e-5
    bool tied = true;       // the head is the token embedding

    int kv_heads() const { return NKV > 0 ? NKV : NH; }
    int HS() const { return head_size > 0 ? head_size : C / NH; }
    // Rows of the embedding and of the head. Padded logits get no probability, and their rows no gradient.
    int Vp() const { return (V + 127) / 128 * 128; }
    bool operator==(const ModelConfig&) const = default;
};

// The sizes that every family has.
inline void check_sizes(const ModelConfig& c) {
    CHECK(c.V > 0, "a vocabulary of {} tokens; expected 1 or more", c.V);
    CHECK(c.V <= max_vocab_size, "a vocabulary of {} tokens; expected at most {}", c.V, max_vocab_size);
    CHECK(c.context > 0, "a context of {} tokens; expected 1 or more", c.context);
    CHECK(c.L > 0, "{} layers; expected 1 or more", c.L);
    CHECK(c.NH > 0, "{} heads; expected 1 or more", c.NH);
    CHECK(c.C > 0, "{} channels; expected 1 or more", c.C);
}
