// special_tokens.h: the added tokens of a tokenizer and their tasks, from all files in which transformers
//   looks for them.
//   tokenizer.json           added_tokens
//   tokenizer_config.json    added_tokens_decoder, bos_token, eos_token, .., extra_special_tokens
//   special_tokens_map.json  the same tasks, and added_tokens.json: read if there is no added_tokens_decoder;
//                            a task of special_tokens_map.json replaces that of tokenizer_config.json
// Checked with transformers 5.24 (test/outside/test_folders.py).
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/word_splitter.h"

// A class of transformers that makes words, the normalizer and special tokens itself, whatever tokenizer.json
// says of them.
struct TokenizerClass {
    const char* name;                // also with Fast behind it
    std::set<std::string> models{};  // the model_types that have it if no file names a class
    std::vector<SplitPattern> steps;
    bool nfc = false;
    bool plain_tokens = false;                    // special tokens lose lstrip, rstrip and single_word
    bool bare_prompts = false;                    // the post_processor of tokenizer.json counts for nothing
    std::map<std::string, std::string> defaults;  // "eos_token": its content, if no file names it
};

// The files beside a vocabulary; null for one that is missing.
struct TokenizerSays {
    std::string path;  // of the tokenizer.json or vocab.json, for errors
    nlohmann::json added_tokens, config, map, added;
    nlohmann::ordered_json config_in_order, map_in_order;  // by which new tokens are numbered
    const TokenizerClass* own_class = nullptr;             // if transformers opens it with one of these
};

struct SpecialTokens {
    std::vector<AddedToken> added;
    std::map<std::string, std::string> tasks;     // "eos_token": its content
    std::map<std::string, std::string> defaults;  // tasks of the class, which no file names
};

// Numbers new tokens as Hugging Face does, after the vocabulary. UsageError if a file gives one another
// number.
SpecialTokens read_special_tokens(const TokenizerSays& says,
                                  const std::unordered_map<std::string, int>& vocabulary);

// True if tokenizer_config.json or special_tokens_map.json says something that GPT-2's own files do not, so
// that a copy of the model needs them.
bool says_more_than_gpt2(const TokenizerSays& says);
