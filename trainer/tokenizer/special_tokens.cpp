#include "trainer/tokenizer/special_tokens.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <set>
#include <utility>

#include "system/error.h"
#include "system/json_text.h"
#include "trainer/tokenizer/tokenizer_files.h"
#include "trainer/tokenizer/tokenizer_json.h"

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* tasks[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                 "pad_token", "cls_token", "mask_token"};

bool is_task(const std::string& name) {
    return std::find(std::begin(tasks), std::end(tasks), name) != std::end(tasks);
}

// Special tokens are texts or objects; null and "" are none.
bool is_given(const json& value) { return !value.is_null() && value != ""; }

std::string content_of(const json& value, const std::string& path) {
    return value.is_string() ? value.get<std::string>() : added_token_of(value, path).content;
}

// named: the contents that a task or a field of its own makes special, whatever the object says.
AddedToken token_of_object(json token, const std::set<std::string>& named, const std::string& path) {
    const AddedToken added = added_token_of(token, path);
    if (added.special || !named.contains(added.content)) return added;
    token["special"] = true;  // the default of normalized depends on it
    return added_token_of(token, path);
}

// A text is special, and so is an object of special_tokens_map.json, which has no __type.
AddedToken token_of(json value, const std::set<std::string>& named, const std::string& path) {
    if (value.is_string()) return {.content = value.get<std::string>(), .special = true};
    if (value.is_object() && !value.contains("__type")) value.emplace("special", true);
    return token_of_object(value, named, path);
}

class Collector {
public:
    Collector(const std::string& path, const std::unordered_map<std::string, int>& vocabulary)
        : path_(path), vocabulary_(vocabulary) {}

    bool has(const std::string& content) const { return find(content) != tokens_.size(); }
    // stated: the number by the file; null if it names none.
    void add(AddedToken token, const json& stated) {
        const size_t index = find(token.content);
        const auto known = vocabulary_.find(token.content);
        token.id = index < tokens_.size()       ? tokens_[index].id
                   : known != vocabulary_.end() ? known->second
                                                : next();
        CHECK(stated.is_null() || (stated.is_number_unsigned() && stated.get<uint64_t>() < max_vocab_size),
              "{}: added token {} has number {}, expected a whole number below {}", path_,
              shown(token.content), shown(stated), max_vocab_size);
        CHECK(stated.is_null() || stated == token.id,
              "{}: token '{}' has the numbers {} and {}; Hugging Face's tokenizers take the first", path_,
              token.content, token.id, stated.get<int>());
        CHECK(token.id < max_vocab_size, "{}: added token {} would have number {}; expected fewer than {}",
              path_, shown(token.content), token.id, max_vocab_size);
        // With split_special_tokens, a token that has once been special stays in the text.
        token.passed_over = token.special || (index < tokens_.size() && tokens_[index].passed_over);
        if (index == tokens_.size()) indices_[token.content] = index, tokens_.push_back(std::move(token));
        else tokens_[index] = std::move(token);
    }
    std::vector<AddedToken> take() { return std::move(tokens_); }

private:
    size_t find(const std::string& content) const {
        const auto found = indices_.find(content);
        return found == indices_.end() ? tokens_.size() : found->second;
    }
    int next() const {
        int next = static_cast<int>(vocabulary_.size());
        for (const AddedToken& token : tokens_) next = std::max(next, token.id + 1);
        return next;
    }

    const std::string& path_;
    const std::unordered_map<std::string, int>& vocabulary_;
    std::vector<AddedToken> tokens_;
    std::unordered_map<std::string, size_t> indices_;
};

// With added_tokens_decoder, special_tokens_map.json and added_tokens.json count for nothing.
bool is_old(const TokenizerSays& says) { return !says.config.contains("added_tokens_decoder"); }

// Tasks by their names, with what the files say: a text, an object, or null.
std::map<std::string, json> read_tasks(const TokenizerSays& says) {
    std::map<std::string, json> found;
    const auto read = [&](const json& file) {
        for (const auto& [name, value] : file.items())
            if (is_task(name)) found.emplace(name, value);
    };
    if (is_old(says)) read(says.map);
    read(says.config);
    return found;
}

ordered_json field_of(const ordered_json& object, const char* name) {
    const auto found = object.find(name);
    return found == object.end() ? ordered_json() : *found;
}

void replace_in(ordered_json& named, const ordered_json& others) {
    for (const auto& [name, value] : others.items()) named[name] = value;
}

// Special tokens as the files give them, in the order in which transformers 5 numbers new ones.
struct SpecialValues {
    std::vector<json> named, listed;  // named: with a task or a field of their own
};

// Those without a task: fields "user_token", then model_specific_special_tokens, which tokens of
// tokenizer_config.json that have names replace, then lists.
SpecialValues other_special_tokens(const TokenizerSays& says) {
    ordered_json fields = ordered_json::object(), specific = ordered_json::object(), list;
    const auto read_fields = [](const ordered_json& file, auto is_token) {
        ordered_json found = ordered_json::object();
        for (const auto& [name, value] : file.items())
            if (name.ends_with("_token") && !is_task(name) && is_token(value)) found[name] = value;
        return found;
    };
    const ordered_json& config = says.config_in_order;
    fields = read_fields(config, [](const ordered_json& value) {
        return value.is_object() && field_of(value, "__type") == "AddedToken";
    });
    specific = read_fields(config, [](const ordered_json& value) { return value.is_string(); });
    list = field_of(config, "extra_special_tokens");
    if (list.empty()) list = field_of(config, "additional_special_tokens");
    if (list.is_object()) replace_in(specific, std::exchange(list, ordered_json()));
    if (specific.empty()) specific = field_of(config, "model_specific_special_tokens");

    if (const ordered_json& map = says.map_in_order; is_old(says)) {
        replace_in(fields, read_fields(map, [](const ordered_json& value) {
                       return value.is_string() || value.is_object();
                   }));
        if (map.contains("model_specific_special_tokens")) specific = map["model_specific_special_tokens"];
        const ordered_json extra = field_of(map, "extra_special_tokens");
        if (extra.is_object()) replace_in(specific, extra), list = ordered_json();
        else if (list.is_null()) list = extra.is_null() ? field_of(map, "additional_special_tokens") : extra;
        else list.insert(list.end(), extra.begin(), extra.end());
    }
    replace_in(fields, specific);
    return {.named = std::vector<json>(fields.begin(), fields.end()),
            .listed = std::vector<json>(list.begin(), list.end())};
}

SpecialValues read_special_values(const TokenizerSays& says, SpecialTokens& special) {
    const std::map<std::string, json> given = read_tasks(says);
    SpecialValues values;
    for (const char* task : tasks) {
        const auto found = given.find(task);
        const bool is_default =
            found == given.end() && says.own_class && says.own_class->defaults.contains(task);
        const json value = is_default             ? json(says.own_class->defaults.at(task))
                           : found == given.end() ? json()
                                                  : found->second;
        if (!is_given(value)) continue;
        (is_default ? special.defaults : special.tasks)[task] = content_of(value, says.path);
        values.named.push_back(value);
    }
    SpecialValues others = other_special_tokens(says);
    values.named.insert(values.named.end(), others.named.begin(), others.named.end());
    values.listed = std::move(others.listed);
    for (std::vector<json>* group : {&values.named, &values.listed})
        std::erase_if(*group, [](const json& value) { return !is_given(value); });
    return values;
}

// {"50257": {"content": ..}} or {"content": 50257}, in the order of the numbers.
std::vector<std::pair<int, json>> by_number(const json& object, bool number_first, const std::string& path) {
    std::vector<std::pair<int, json>> tokens;
    for (const auto& [name, value] : object.items()) {
        int number = -1;
        if (number_first) std::from_chars(name.data(), name.data() + name.size(), number);
        else if (value.is_number_unsigned() && value.get<uint64_t>() < max_vocab_size)
            number = value.get<int>();
        CHECK(number >= 0 && number < max_vocab_size,
              "{}: added token {} has number {}, expected a whole number below {}", path,
              number_first ? shown(field(value, "content")) : shown(name),
              number_first ? shown(name) : shown(value), max_vocab_size);
        tokens.emplace_back(number, number_first ? value : json(name));
    }
    std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return tokens;
}

// Tokens of added_tokens_decoder, or else of added_tokens.json, which has only contents and numbers.
void add_listed(const TokenizerSays& says, const std::set<std::string>& named,
                const std::set<std::string>& special, Collector& collector) {
    if (!is_old(says)) {
        for (const auto& [number, token] : by_number(says.config["added_tokens_decoder"], true, says.path))
            collector.add(token_of_object(token, named, says.path), static_cast<unsigned>(number));
        return;
    }
    for (const auto& [number, name] : by_number(says.added, false, says.path)) {
        AddedToken token{.content = name.get<std::string>()};
        token.special = special.contains(token.content);
        token.normalized = !token.special;
        if (!collector.has(token.content)) collector.add(token, static_cast<unsigned>(number));
    }
}

bool is_empty(const json& value) {
    return value.is_null() || value == false || (value.is_structured() && value.empty());
}

}  // namespace

SpecialTokens read_special_tokens(const TokenizerSays& says,
                                  const std::unordered_map<std::string, int>& vocabulary) {
    SpecialTokens special;
    const SpecialValues values = read_special_values(says, special);
    std::set<std::string> named, contents;
    for (const json& value : values.named) named.insert(content_of(value, says.path));
    std::vector<AddedToken> tokens;  // in the order in which new ones are numbered
    for (const std::vector<json>* group : {&values.named, &values.listed})
        for (const json& value : *group) tokens.push_back(token_of(value, named, says.path));
    for (const AddedToken& token : tokens) contents.insert(token.content);

    Collector collector(says.path, vocabulary);
    // Such a class takes added tokens of tokenizer.json only where tokenizer_config.json lists none.
    for (const json& token : says.own_class && !is_old(says) ? json::array() : says.added_tokens) {
        // With added_tokens_decoder, only those that it lists become special by a task.
        const AddedToken added =
            is_old(says) ? token_of_object(token, named, says.path) : added_token_of(token, says.path);
        const json& id = field(token, "id");
        CHECK(!id.is_null(), "{}: added token {} has no id; expected a whole number", says.path,
              shown(added.content));
        collector.add(added, id);
    }
    add_listed(says, named, contents, collector);
    // If new tokens share a content, the last one that differs from those before it counts.
    std::erase_if(tokens, [&](const AddedToken& token) { return collector.has(token.content); });
    for (auto token = tokens.begin(); token != tokens.end(); token++)
        if (std::find(tokens.begin(), token, *token) == token) collector.add(*token, json());
    special.added = collector.take();
    if (says.own_class && says.own_class->plain_tokens)
        for (AddedToken& token : special.added)
            if (contents.contains(token.content))
                token = {.content = token.content, .id = token.id, .special = true, .passed_over = true};
    if (field(says.config, "split_special_tokens") != true)
        for (AddedToken& token : special.added) token.passed_over = false;
    return special;
}

bool says_more_than_gpt2(const TokenizerSays& says) {
    const std::set<std::string> harmless = {"tokenizer_class",
                                            "model_max_length",
                                            "name_or_path",
                                            "backend",
                                            "clean_up_tokenization_spaces",
                                            "special_tokens_map_file",
                                            "tokenizer_file",
                                            "is_local",
                                            "local_files_only",
                                            "added_tokens_decoder"};
    const auto is_gpt2s = [&](const std::string& name, const json& value) {
        if (harmless.contains(name)) return true;
        if (name == "bos_token" || name == "eos_token" || name == "unk_token")
            return (value.is_object() ? field(value, "content") : value) == gpt2_end_of_text;
        return is_empty(value) || (name == "errors" && value == "replace") ||
               (name.ends_with("_side") && value == "right");
    };
    for (const json* file : {&says.config, &says.map}) {
        for (const auto& [name, value] : file->items())
            if (!is_gpt2s(name, value)) return true;
    }
    return false;
}
