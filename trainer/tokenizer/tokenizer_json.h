// tokenizer_json.h: the parts of a tokenizer.json, and those that other files have in common with it.
//   https://huggingface.co/docs/tokenizers
// Everything that would give other tokens than this program's is a UsageError that names file and setting.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/byte_level_tokenizer.h"

// The field of an object; null if it is missing.
const nlohmann::json& field(const nlohmann::json& object, const char* name);

using Merges = std::vector<std::pair<std::string, std::string>>;
// {token: number}, with numbers below `end`.
std::unordered_map<std::string, int> read_vocabulary(const nlohmann::json& object, size_t end,
                                                     const std::string& path);
// A list of "left right", or ["left", "right"] in files of newer versions.
Merges read_merges(const nlohmann::json& list, const std::string& path);
// A line "left right" for each.
Merges read_merges_file(const std::string& path);

// A tokenizer's tokens and merges as vocabulary files write them.
nlohmann::json vocabulary_of(const Tokenizer& tokenizer);
Merges merges_of(const Tokenizer& tokenizer);

// An added token as all files write it: {"content": .., "lstrip": .., ..}.
AddedToken added_token_of(const nlohmann::json& token, const std::string& path);

// How a tokenizer.json splits a text. Its pre_tokenizer is one step or a Sequence of steps.
struct Splitting {
    std::vector<SplitPattern> steps;
    bool prefix_space = false, bytes = false;
};
Splitting read_splitting(const nlohmann::json& root, const std::string& path);

// Tokens around a single text.
struct Surrounding {
    std::vector<int> before, after;
};
Surrounding read_post_processor(const nlohmann::json& root, const std::string& path);

// True if texts are normalized to NFC. Refuses other normalizers.
bool read_normalizer(const nlohmann::json& root, const std::string& path);

// Refuses other models than BPE, and other decoders.
void refuse_other_models(const nlohmann::json& root, const std::string& path);
