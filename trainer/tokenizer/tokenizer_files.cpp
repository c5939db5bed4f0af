#include "trainer/tokenizer/tokenizer_files.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "system/error.h"
#include "system/file_access.h"
#include "system/json_text.h"
#include "system/mapped_file.h"
#include "trainer/tokenizer/byte_level_tokenizer.h"

using nlohmann::json;

namespace {

constexpr char end_of_text[] = "<|endoftext|>";

using Merges = std::vector<std::pair<std::string, std::string>>;

// A tokenizer's tokens and merges as vocabulary files write them.
json vocabulary_of(const Tokenizer& tokenizer) {
    json vocabulary = json::object();
    for (int id = 0; id < tokenizer.vocab_size(); id++)
        vocabulary[printable_bytes(tokenizer.token_bytes(id))] = id;
    return vocabulary;
}

Merges merges_of(const Tokenizer& tokenizer) {
    Merges merges;
    for (const auto& [left, right] : tokenizer.merges())
        merges.emplace_back(printable_bytes(tokenizer.token_bytes(left)),
                            printable_bytes(tokenizer.token_bytes(right)));
    return merges;
}

std::pair<std::string, std::string> merge_of(std::string_view line, const std::string& path) {
    const size_t space = line.find(' ');
    CHECK(space != line.npos, "{}: '{}' is not a merge of two tokens", path, line);
    return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

Merges read_merges(const std::string& path) {
    const std::string text = MappedFile(path).text();
    Merges merges;
    for (std::string_view rest = text; !rest.empty();) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (!line.empty() && !line.starts_with("#version")) merges.push_back(merge_of(line, path));
    }
    CHECK(!merges.empty(), "{}: holds no merges", path);
    return merges;
}

json json_of(const Merges& merges) {
    json lines = json::array();
    for (const auto& [left, right] : merges) lines.push_back(left + " " + right);
    return lines;
}

// The tokenizer.json of gpt2 or byte.
json tokenizer_json(const Tokenizer& tokenizer) {
    const bool gpt2 = tokenizer.name() == "gpt2";
    json added = json::array();
    if (gpt2) {
        added.push_back({{"id", gpt2_vocab_size - 1},
                         {"content", end_of_text},
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
json tokenizer_config(bool gpt2, int context) {
    json config = {{"tokenizer_class", gpt2 ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"},
                   {"model_max_length", context},
                   {"clean_up_tokenization_spaces", false}};
    if (gpt2) {
        for (const char* role : {"bos_token", "eos_token", "unk_token"}) config[role] = end_of_text;
        config["add_prefix_space"] = false;
    }
    return config;
}

// The field of an object; null if it is missing.
const json& field(const json& object, const char* name) {
    static const json null;
    const auto found = object.is_object() ? object.find(name) : object.end();
    return found == object.end() ? null : *found;
}

std::unordered_map<std::string, int> read_vocabulary(const json& object, size_t end,
                                                     const std::string& path) {
    CHECK(object.is_object(), "{}: is not a JSON object of tokens and their numbers", path);
    std::unordered_map<std::string, int> vocabulary;
    for (const auto& [token, id] : object.items()) {
        // get<int>() alone would turn 1.5 into 1 and 2^32 into 0.
        const bool is_number = id.is_number_unsigned() && id.get<uint64_t>() < end;
        CHECK(is_number, "{}: token '{}' has number {}, expected a whole number below {}", path, token,
              shown(id), end);
        vocabulary.emplace(token, id.get<int>());
    }
    return vocabulary;
}

// A merge is "left right", or ["left", "right"] in files of newer versions.
Merges read_merges(const json& list, const std::string& path) {
    CHECK(list.is_array(), "{}: has no list of merges", path);
    Merges merges;
    for (const json& merge : list) {
        const bool is_pair =
            merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
        CHECK(is_pair || merge.is_string(), "{}: {} is not a merge of two tokens", path, shown(merge));
        merges.push_back(is_pair ? std::pair(merge[0].get<std::string>(), merge[1].get<std::string>())
                                 : merge_of(merge.get_ref<const std::string&>(), path));
    }
    return merges;
}

std::unordered_map<std::string, int> read_special_tokens(const json& list, const std::string& path) {
    std::unordered_map<std::string, int> tokens;
    for (const json& token : list) {
        const json &content = field(token, "content"), &id = field(token, "id");
        CHECK(content.is_string() && id.is_number_unsigned() && id.get<uint64_t>() < max_vocab_size,
              "{}: added token {} has number {}, expected a whole number below {}", path, shown(content),
              shown(id), max_vocab_size);
        tokens[content.get<std::string>()] = id.get<int>();
    }
    return tokens;
}

// How a tokenizer.json splits a text. Its pre_tokenizer is one step or a Sequence of steps.
struct Splitting {
    Digits digits = Digits::nothing;
    bool prefix_space = false, words = false, bytes = false;
};

void read_pre_tokenizer(const json& step, const std::string& path, Splitting& splitting) {
    const json& type = field(step, "type");
    if (type == "Sequence") {
        for (const json& inner : field(step, "pretokenizers")) read_pre_tokenizer(inner, path, splitting);
        return;
    }
    CHECK(!splitting.bytes && (type == "Digits" || type == "ByteLevel"),
          "{}: its pre_tokenizer has a step {}; expected ByteLevel, or Digits and ByteLevel", path,
          shown(type));
    if (type == "Digits") {
        splitting.digits =
            field(step, "individual_digits") == true ? Digits::each_other : Digits::other_characters;
    } else {
        splitting.bytes = true;
        // both are true by default in the tokenizers library
        splitting.prefix_space = field(step, "add_prefix_space") != false;
        splitting.words = field(step, "use_regex") != false;
    }
}

Splitting read_splitting(const json& root, const std::string& path) {
    Splitting splitting;
    read_pre_tokenizer(field(root, "pre_tokenizer"), path, splitting);
    CHECK(splitting.bytes, "{}: its pre_tokenizer is not ByteLevel; expected a byte-level BPE", path);
    const bool has_merges = !field(field(root, "model"), "merges").empty();
    CHECK(splitting.words || !has_merges,
          "{}: its pre_tokenizer does not split texts into words (use_regex); expected that", path);
    CHECK(splitting.digits == Digits::nothing || !splitting.prefix_space,
          "{}: puts a space before every number (Digits and add_prefix_space)", path);
    return splitting;
}

// Refuses settings with which Hugging Face would encode a text to other tokens than this program.
void refuse_other_models(const json& root, const std::string& path) {
    const json &model = field(root, "model"), &normalizer = field(root, "normalizer");
    CHECK(field(model, "type") == "BPE", "{}: is a model of type {}; expected a byte-level BPE", path,
          shown(field(model, "type")));
    CHECK(normalizer.is_null() ||
              (field(normalizer, "type") == "Sequence" && field(normalizer, "normalizers").empty()),
          "{}: has a normalizer of type {}; expected none, with the texts normalized before", path,
          shown(field(normalizer, "type")));
    for (const char* name :
         {"dropout", "ignore_merges", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"}) {
        const json& value = field(model, name);
        CHECK(value.is_null() || value == false || value == "" || value == 0, "{}: has {} {}; expected none",
              path, name, shown(value));
    }
}

// The text of the file `name` beside path; "" if there is none.
std::string text_beside(const std::string& path, const char* name) {
    const std::string beside = std::filesystem::path(path).replace_filename(name);
    return is_there(beside) ? MappedFile(beside).text() : "";
}

std::string end_of_text_of(const ByteLevelVocabulary& vocabulary, const std::string& config) {
    const json root = parse_json(config);
    const json &eos = field(root, "eos_token"), &token = eos.is_object() ? field(eos, "content") : eos;
    if (token.is_string()) return token.get<std::string>();
    for (const char* name : {end_of_text, "</s>"}) {
        if (vocabulary.special_tokens.contains(name)) return name;
    }
    return "";
}

// gpt2 or byte if it has this vocabulary, else null.
std::unique_ptr<Tokenizer> shipped_tokenizer_with(const json& vocabulary) {
    for (const auto& [name, size] : {std::pair{"byte", 256}, {"gpt2", gpt2_vocab_size}}) {
        if (vocabulary.size() != static_cast<size_t>(size)) continue;
        std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(name);
        if (vocabulary == vocabulary_of(*tokenizer)) return tokenizer;
    }
    return nullptr;
}

// The same for a tokenizer.json, which must also have the same merges and add no space.
std::unique_ptr<Tokenizer> shipped_tokenizer(const json& root, const std::string& path) {
    const json& model = field(root, "model");
    std::unique_ptr<Tokenizer> tokenizer = shipped_tokenizer_with(field(model, "vocab"));
    if (!tokenizer) return nullptr;
    const Merges merges = read_merges(field(model, "merges"), path);
    const bool prefix_space =
        field(root, "pre_tokenizer").is_object() && read_splitting(root, path).prefix_space;
    if (prefix_space || merges != merges_of(*tokenizer)) return nullptr;
    return tokenizer;
}

// A checksum of everything on which the tokens of a text depend.
std::string checksum_of(const ByteLevelVocabulary& vocabulary) {
    const json all = {{"tokens", vocabulary.tokens},
                      {"merges", vocabulary.merges},
                      {"special_tokens", vocabulary.special_tokens},
                      {"end_of_text", vocabulary.end_of_text},
                      {"digits", static_cast<int>(vocabulary.digits)},
                      {"prefix_space", vocabulary.prefix_space}};
    const std::string text = all.dump(-1, ' ', false, json::error_handler_t::replace);
    return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace

std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::string& encoder_path,
                                               const std::string& merges_path) {
    const json tokens = read_json_object(encoder_path);
    const ByteLevelVocabulary vocabulary{.file = encoder_path,
                                         .tokens = read_vocabulary(tokens, tokens.size(), encoder_path),
                                         .merges = read_merges(merges_path),
                                         .merges_file = merges_path,
                                         .end_of_text = end_of_text};
    return std::make_unique<ByteLevelTokenizer>("gpt2", vocabulary);
}

std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path) {
    const json root = read_json_object(path);
    const json& model = field(root, "model");
    CHECK(field(model, "vocab").is_object(), "{}: has no model with a vocabulary", path);
    if (std::unique_ptr<Tokenizer> known = shipped_tokenizer(root, path)) return known;
    refuse_other_models(root, path);
    const Splitting splitting = read_splitting(root, path);
    ByteLevelVocabulary vocabulary{.file = path,
                                   .tokens = read_vocabulary(model.at("vocab"), max_vocab_size, path),
                                   .merges = read_merges(field(model, "merges"), path),
                                   .merges_file = path,
                                   .special_tokens = read_special_tokens(field(root, "added_tokens"), path),
                                   .digits = splitting.digits,
                                   .prefix_space = splitting.prefix_space};
    std::vector<TextFile> files = {{"tokenizer.json", MappedFile(path).text()}};
    const std::string config = text_beside(path, "tokenizer_config.json");
    if (!config.empty()) files.push_back({"tokenizer_config.json", config});
    vocabulary.end_of_text = end_of_text_of(vocabulary, config);
    return std::make_unique<ByteLevelTokenizer>("bpe-" + checksum_of(vocabulary), vocabulary,
                                                std::move(files));
}

std::vector<TextFile> tokenizer_files(const Tokenizer& tokenizer, int context) {
    const bool gpt2 = tokenizer.name() == "gpt2";
    if (gpt2 || tokenizer.name() == "byte")
        return {{"tokenizer.json", tokenizer_json(tokenizer).dump() + "\n"},
                {"tokenizer_config.json", tokenizer_config(gpt2, context).dump(2) + "\n"}};
    std::vector<TextFile> files(tokenizer.files().begin(), tokenizer.files().end());
    if (files.size() == 1) {
        json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"model_max_length", context},
                       {"clean_up_tokenization_spaces", false}};
        if (const std::optional<int> end = tokenizer.end_of_text())
            config["eos_token"] = tokenizer.token_bytes(*end);
        files.push_back({"tokenizer_config.json", config.dump(2) + "\n"});
    }
    return files;
}

std::string tokenizer_in(const std::string& folder) {
    if (const std::string path = folder + "/tokenizer.json"; is_there(path)) return path;
    const std::string path = folder + "/vocab.json";
    if (!is_there(path)) return "";
    const std::unique_ptr<Tokenizer> tokenizer = shipped_tokenizer_with(read_json_object(path));
    CHECK(tokenizer,
          "{}: is the vocabulary of another tokenizer than GPT-2's; expected a tokenizer.json beside it, "
          "which transformers "
          "writes: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
          path);
    return std::string(tokenizer->name());
}
