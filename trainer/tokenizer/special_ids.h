// special_ids.h: the tokens that begin, end and pad a text, as the files of a model number them.
//   generation_config.json  what transformers' generate goes by; eos_token_id may be a list
//   config.json             the same where the first says nothing
// The tokenizer's own files (tokenizer_config.json, special_tokens_map.json) come after both.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

struct SpecialIds {
    std::optional<int> begin, pad;
    std::vector<int> ends;  // each of them ends a generated text

    bool say_nothing() const { return !begin && !pad && ends.empty(); }
    bool operator==(const SpecialIds&) const = default;
};

// Each task by the first of these that gives it to tokens below V; others are left out.
SpecialIds first_known(std::initializer_list<SpecialIds> choices, int V);

// The special ids that a model's folder states.
struct ModelIds {
    SpecialIds config, generation;
    int vocab_size = 0;             // by config.json; 0: unknown
    std::string generation_config;  // the text of generation_config.json, "" if there is none
    // The fields of generation_config.json that say more than special tokens: "temperature", "top_k"
    std::string generation_settings;

    bool say_nothing() const { return config.say_nothing() && generation.say_nothing(); }
};

// Files that are missing, or a config.json that is not a model's, say nothing. UsageError for a damaged
// generation_config.json: without it texts would not end where they should.
ModelIds read_model_ids(const std::string& folder);
