#include "tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "atomic_file.h"
#include "data_directory.h"
#include "file_access.h"
#include "gpt2_tokenizer.h"
#include "json_text.h"
#include "mapped_file.h"
#include "tokenizer.h"

using nlohmann::json;

static const std::string end_of_text = "<|endoftext|>";

static json byte_vocabulary() {
    json vocabulary = json::object();
    for (int byte = 0; byte < 256; byte++) vocabulary[character_of_byte(byte)] = byte;
    return vocabulary;
}

static json gpt2_vocabulary() { return read_json_object(data_directory() + "/gpt2_encoder.json"); }

// "left right" a line, as tokenizer.json writes merges too.
static json gpt2_merges() {
    const std::string text = MappedFile(data_directory() + "/gpt2_vocab.bpe").text();
    json merges = json::array();
    for (std::string_view rest = text; !rest.empty();) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
    }
    return merges;
}

static json tokenizer_json(bool gpt2) {
    json added = json::array();
    if (gpt2) {
        added.push_back({{"id", gpt2_end_of_text},
                         {"content", end_of_text},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", true},
                         {"special", true}});
    }
    // Without merges the words a text is split into do not matter.
    const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", gpt2}};
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level},
            {"post_processor", nullptr},
            {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"continuing_subword_prefix", ""},
              {"end_of_word_suffix", ""},
              {"fuse_unk", false},
              {"byte_fallback", false},
              {"vocab", gpt2 ? gpt2_vocabulary() : byte_vocabulary()},
              {"merges", gpt2 ? gpt2_merges() : json::array()}}}};
}

// transformers gives its GPT-2 class an unknown token, which would be a 257th of the bytes.
static json tokenizer_config(bool gpt2, int context) {
    json config = {{"tokenizer_class", gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"},
                   {"model_max_length", context},
                   {"clean_up_tokenization_spaces", false}};
    if (gpt2) {
        for (const char* role : {"bos_token", "eos_token", "unk_token"}) config[role] = end_of_text;
        config["add_prefix_space"] = false;
    }
    return config;
}

std::vector<std::string> write_tokenizer_files(const std::string& folder, const std::string& tokenizer, int context) {
    CHECK(tokenizer == "gpt2" || tokenizer == "byte", "tokenizer '{}' is not known; choose gpt2 or byte", tokenizer);
    const bool gpt2 = tokenizer == "gpt2";
    const std::pair<std::string, std::string> files[] = {{"tokenizer.json", tokenizer_json(gpt2).dump() + "\n"},
                                                         {"tokenizer_config.json", tokenizer_config(gpt2, context).dump(2) + "\n"}};
    std::vector<std::string> names;
    for (const auto& [name, text] : files) {
        write_atomically(folder + "/" + name, text);
        names.push_back(name);
    }
    return names;
}

std::string recognise_tokenizer(const std::string& folder) {
    for (const char* name : {"tokenizer.json", "vocab.json"}) {
        const std::string path = folder + "/" + name;
        if (!is_there(path)) continue;
        json vocabulary = read_json_object(path);
        if (std::string(name) == "tokenizer.json") {
            const auto model = vocabulary.find("model");
            CHECK(model != vocabulary.end() && model->is_object() && model->contains("vocab"), "{}: has no model with a vocabulary", path);
            vocabulary = json(model->at("vocab"));
        }
        if (vocabulary == byte_vocabulary()) return "byte";
        if (vocabulary == gpt2_vocabulary()) return "gpt2";
        throw UsageError(fmt::format("{}: is neither GPT-2's tokenizer nor bytes; expected one of them, or to be told by --tokenizer", path));
    }
    return "";
}
