#include "trainer/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "system/error.h"
#include "trainer/tokenizer/byte_level_tokenizer.h"
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

json added_token(const std::string& content, size_t id, bool normalized) {
    return {{"id", id},        {"content", content},       {"single_word", false}, {"lstrip", false},
            {"rstrip", false}, {"normalized", normalized}, {"special", true}};
}

json byte_level(bool use_regex) {
    return {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json tokenizer_json(const json& added, const json& pre_tokenizer, const json& vocabulary,
                    const Merges& merges) {
    return {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", added},
        {"normalizer", nullptr},
        {"pre_tokenizer", pre_tokenizer},
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
          {"vocab", vocabulary},
          {"merges", json_of(merges)}}}};
}

// The tokenizer.json of gpt2 or byte. Without merges it does not matter how text is split into words.
json shipped_json(const Tokenizer& tokenizer) {
    const bool gpt2 = is_gpt2(tokenizer);
    json added = json::array();
    if (gpt2) added.push_back(added_token(gpt2_end_of_text, gpt2_vocab_size - 1, true));
    return tokenizer_json(added, byte_level(gpt2), vocabulary_of(tokenizer), merges_of(tokenizer));
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
        return {{"tokenizer.json", shipped_json(tokenizer).dump() + "\n"},
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

std::pair<std::string, std::string> files_of_training(const TrainedMerges& trained, SplitPattern pattern,
                                                      const std::vector<std::string>& special) {
    json vocabulary = json::object(), added = json::array();
    for (size_t id = 0; id < trained.tokens.size(); id++)
        vocabulary[printable_bytes(trained.tokens[id])] = id;
    for (const std::string& token : special) {
        // A special token that the texts gave, too, keeps its first number in the tokenizers library.
        CHECK(!vocabulary.contains(token), "--special {}: is already a token of the texts; expected another",
              token);
        added.push_back(added_token(token, vocabulary.size(), false));
        vocabulary[token] = vocabulary.size();
    }
    Merges merges;
    for (const auto& [left, right] : trained.merges)
        merges.emplace_back(printable_bytes(trained.tokens[left]), printable_bytes(trained.tokens[right]));
    json pre_tokenizer = byte_level(true);
    if (pattern != SplitPattern::gpt2) {
        const json split = {{"type", "Split"},
                            {"pattern", {{"Regex", regex_of(pattern)}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
        pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false)}}};
    }
    json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    if (!special.empty())
        for (const char* task : {"bos_token", "eos_token"}) config[task] = special[0];
    return {tokenizer_json(added, pre_tokenizer, vocabulary, merges).dump(1) + "\n", config.dump(2) + "\n"};
}
