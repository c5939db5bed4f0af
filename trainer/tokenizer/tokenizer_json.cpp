#include "trainer/tokenizer/tokenizer_json.h"

#include <algorithm>

#include "system/error.h"
#include "system/file_reader.h"
#include "system/json_text.h"

using nlohmann::json;

namespace {

std::pair<std::string, std::string> merge_of(std::string_view line, const std::string& path) {
    const size_t space = line.find(' ');
    CHECK(space != line.npos, "{}: '{}' is not a merge of two tokens", path, line);
    return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

// The pattern of a step Split. Its words are the whole text, so that two ways of writing it are the same:
// each word by itself, or what lies between the words left out.
SplitPattern pattern_of_split(const json& step, const std::string& path) {
    const json& regex = field(field(step, "pattern"), "Regex");
    CHECK(regex.is_string(), "{}: its pre_tokenizer splits at {}; expected a regular expression", path,
          shown(field(step, "pattern")));
    const std::optional<SplitPattern> pattern = pattern_of_regex(regex.get_ref<const std::string&>());
    CHECK(pattern,
          "{}: its pre_tokenizer splits by {}; expected the pattern of GPT-2, GPT-4, Llama 3, Qwen or "
          "nanochat, as docs/formats.md lists them",
          path, shown(regex));
    const json &behavior = field(step, "behavior"), &invert = field(step, "invert");
    CHECK(
        behavior == "Isolated" || (behavior == "Removed" && invert == true),
        "{}: its pre_tokenizer has a Split with the behavior {}{}; expected Isolated, or Removed with invert",
        path, shown(behavior), invert == true ? " and invert" : "");
    return *pattern;
}

void read_pre_tokenizer(const json& step, const std::string& path, Splitting& splitting) {
    const json& type = field(step, "type");
    if (type == "Sequence") {
        for (const json& inner : field(step, "pretokenizers")) read_pre_tokenizer(inner, path, splitting);
        return;
    }
    CHECK(!splitting.bytes && (type == "Digits" || type == "ByteLevel" || type == "Split"),
          "{}: its pre_tokenizer has a step {}; expected ByteLevel, or Digits or Split and then ByteLevel",
          path, shown(type));
    if (type == "Digits") {
        const bool each = field(step, "individual_digits") == true;
        splitting.steps.push_back(each ? SplitPattern::digits : SplitPattern::digit_runs);
    } else if (type == "Split") {
        splitting.steps.push_back(pattern_of_split(step, path));
    } else {
        splitting.bytes = true;
        // both are true by default in the tokenizers library
        splitting.prefix_space = field(step, "add_prefix_space") != false;
        CHECK(splitting.steps.empty() || !splitting.prefix_space,
              "{}: puts a space before every piece ({} and add_prefix_space)", path,
              splitting.steps.back() <= SplitPattern::qwen ? "Split" : "Digits");
        if (field(step, "use_regex") != false) splitting.steps.push_back(SplitPattern::gpt2);
    }
}

int number_of(const json& id, const std::string& path) {
    CHECK(id.is_number_unsigned() && id.get<uint64_t>() < max_vocab_size,
          "{}: its post_processor has the token number {}; expected a whole number below {}", path, shown(id),
          max_vocab_size);
    return id.get<int>();
}

// [{"SpecialToken": {"id": NAME}}, {"Sequence": {"id": "A"}}, ..] with the tokens of each name.
void read_template(const json& processor, const std::string& path, Surrounding& around) {
    const json& single = field(processor, "single");
    CHECK(single.is_array(), "{}: its post_processor has no template for a single text", path);
    bool after = false;
    for (const json& piece : single) {
        if (!field(piece, "Sequence").is_null()) {
            CHECK(!after, "{}: its post_processor takes a text twice; expected once", path);
            after = true;
            continue;
        }
        const json& name = field(field(piece, "SpecialToken"), "id");
        const json& ids =
            name.is_string()
                ? field(field(field(processor, "special_tokens"), name.get_ref<const std::string&>().c_str()),
                        "ids")
                : name;
        CHECK(ids.is_array(), "{}: its post_processor names no number for the token {}", path, shown(name));
        for (const json& id : ids) (after ? around.after : around.before).push_back(number_of(id, path));
    }
    CHECK(after, "{}: its post_processor leaves the text out", path);
}

void read_processor(const json& processor, const std::string& path, Surrounding& around) {
    const json& type = field(processor, "type");
    if (processor.is_null() || type == "ByteLevel") return;  // which changes offsets only
    if (type == "Sequence") {
        for (const json& inner : field(processor, "processors")) read_processor(inner, path, around);
        return;
    }
    CHECK(around.before.empty() && around.after.empty(),
          "{}: several steps of its post_processor add tokens; expected one", path);
    if (type == "TemplateProcessing") return read_template(processor, path, around);
    const bool pair = type == "RobertaProcessing" || type == "BertProcessing";
    CHECK(pair && field(processor, "cls").size() == 2 && field(processor, "sep").size() == 2,
          "{}: has a post_processor of type {}; expected ByteLevel, TemplateProcessing, RobertaProcessing, "
          "BertProcessing or none",
          path, shown(type));
    around.before.push_back(number_of(processor.at("cls").back(), path));
    around.after.push_back(number_of(processor.at("sep").back(), path));
}

}  // namespace

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

Merges read_merges_file(const std::string& path) {
    const std::string text = FileReader(path).text();
    Merges merges;
    for (std::string_view rest = text; !rest.empty();) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (!line.empty() && !line.starts_with("#version")) merges.push_back(merge_of(line, path));
    }
    CHECK(!merges.empty(), "{}: holds no merges", path);
    return merges;
}

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

AddedToken added_token_of(const json& token, const std::string& path) {
    const json& content = field(token, "content");
    CHECK(content.is_string() && !content.get_ref<const std::string&>().empty(),
          "{}: an added token has the content {}; expected a text", path, shown(content));
    const auto flag = [&](const char* name, bool standard) {
        const json& value = field(token, name);
        CHECK(value.is_null() || value.is_boolean(), "{}: added token {} has {} {}; expected true or false",
              path, shown(content), name, shown(value));
        return value.is_null() ? standard : value.get<bool>();
    };
    AddedToken added{.content = content.get<std::string>()};
    added.special = flag("special", false);
    added.single_word = flag("single_word", false);
    added.lstrip = flag("lstrip", false);
    added.rstrip = flag("rstrip", false);
    added.normalized = flag("normalized", !added.special);
    return added;
}

Splitting read_splitting(const json& root, const std::string& path) {
    Splitting splitting;
    read_pre_tokenizer(field(root, "pre_tokenizer"), path, splitting);
    CHECK(splitting.bytes, "{}: its pre_tokenizer is not ByteLevel; expected a byte-level BPE", path);
    return splitting;
}

Surrounding read_post_processor(const json& root, const std::string& path) {
    Surrounding around;
    read_processor(field(root, "post_processor"), path, around);
    return around;
}

bool read_normalizer(const json& root, const std::string& path) {
    const json& given = field(root, "normalizer");
    const bool is_list = field(given, "type") == "Sequence";
    const json& steps = field(given, "normalizers");
    if (given.is_null() || (is_list && steps.empty())) return false;
    const json& normalizer = is_list && steps.size() == 1 ? steps[0] : given;
    CHECK(field(normalizer, "type") == "NFC",
          "{}: has a normalizer of type {}; expected NFC or none, with the texts normalized before", path,
          shown(field(normalizer, "type")));
    return true;
}

void refuse_other_models(const json& root, const std::string& path) {
    const json &model = field(root, "model"), &decoder = field(root, "decoder");
    const json& type = field(model, "type");  // old versions wrote none
    CHECK(type == "BPE" || (type.is_null() && field(model, "merges").is_array()),
          "{}: is a model of type {}; expected a byte-level BPE", path, shown(type));
    CHECK(decoder.is_null() || field(decoder, "type") == "ByteLevel",
          "{}: has a decoder of type {}; expected ByteLevel", path, shown(field(decoder, "type")));
    // byte_fallback is for characters without a token, and ignore_merges is honoured.
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
        const json& value = field(model, name);
        CHECK(value.is_null() || value == false || value == "" || value == 0, "{}: has {} {}; expected none",
              path, name, shown(value));
    }
}
