#include "trainer/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trainer/tokenizer/tokenizer_json.h"

using nlohmann::json;

namespace {

json json_of(const Merges& merges) {
    json lines = json::array();
    for (const auto& [left, right] : merges) lines.push_back(left + " " + right);
    return lines;
}

bool is_gpt2(const Tokenizer& tokenizer) {
    return tokenizer.name() == "gpt2" || tokenizer.name() == "gpt2-eot";
}

// The tokenizer.json of gpt2 or byte.
json tokenizer_json(const Tokenizer& tokenizer) {
    const bool gpt2 = is_gpt2(tokenizer);
    json added = json::array();
    if (gpt2) {
        added.push_back({{"id", gpt2_vocab_size - 1},
                         {"content", gpt2_end_of_text},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", true},
                         {"special", true}});
    }
    // Without merges it does not matter how text is split into words.
    const json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", gpt2}};
    return {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", added},
        {"normalizer", nullptr},
        {"pre_tokenizer", byte_level},
        {"post_processor", nullptr},
        {"decoder",
         {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", ""},
          {"end_of_word_suffix", ""},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"vocab", vocabulary_of(tokenizer)},
          {"merges", json_of(merges_of(tokenizer))}}}};
}

// byte is opened by another class, because the GPT-2 class of transformers adds an unknown token, a 257th.
json tokenizer_config(const Tokenizer& tokenizer, int context) {
    const bool gpt2 = is_gpt2(tokenizer);
    json config = {{"tokenizer_class", gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"},
                   {"model_max_length", context},
                   {"clean_up_tokenization_spaces", false}};
    if (gpt2) {
        for (const char* role : {"bos_token", "eos_token", "unk_token"}) config[role] = gpt2_end_of_text;
        config["add_prefix_space"] = false;
    }
    // transformers' own default, said only by gpt2-eot, so that a model's folder is read as what it was.
    if (tokenizer.name() == "gpt2-eot") config["split_special_tokens"] = false;
    return config;
}

}  // namespace

std::vector<TextFile> tokenizer_files(const Tokenizer& tokenizer, int context) {
    if (is_gpt2(tokenizer) || tokenizer.name() == "byte")
        return {{"tokenizer.json", tokenizer_json(tokenizer).dump() + "\n"},
                {"tokenizer_config.json", tokenizer_config(tokenizer, context).dump(2) + "\n"}};
    std::vector<TextFile> files(tokenizer.files().begin(), tokenizer.files().end());
    const auto has = [&](const char* name) {
        return std::any_of(files.begin(), files.end(),
                           [&](const TextFile& file) { return file.name == name; });
    };
    if (has("tokenizer.json") && !has("tokenizer_config.json")) {
        json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"model_max_length", context},
                       {"clean_up_tokenization_spaces", false}};
        if (const std::optional<int> end = tokenizer.end_of_text())
            config["eos_token"] = tokenizer.token_bytes(*end);
        files.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
    }
    return files;
}
