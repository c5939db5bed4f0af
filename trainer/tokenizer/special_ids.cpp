#include "trainer/tokenizer/special_ids.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/json_text.h"
#include "trainer/tokenizer/token.h"

using nlohmann::json;

namespace {

std::string text_of(const std::string& path) { return is_there(path) ? FileReader(path).text() : ""; }

// The numbers of one field, which is a number or a list of numbers; null and -1 stand for no token. Python
// takes 2.0 for 2.
std::vector<int> numbers_of(const json& object, const char* name, const std::string& path) {
    std::vector<int> numbers;
    const auto field = object.find(name);
    if (field == object.end()) return numbers;
    for (const json& value : field->is_array() ? *field : json::array({*field})) {
        if (value.is_null() || value == -1) continue;
        const double number = value.is_number() ? value.get<double>() : -1;
        CHECK(number >= 0 && number == std::floor(number),
              "{}: {} is {}; expected the number of a token, a list of them, or null", path, name,
              shown(*field));
        if (number < max_vocab_size) numbers.push_back(static_cast<int>(number));
    }
    return numbers;
}

SpecialIds ids_of(const json& object, const std::string& path) {
    const auto one = [&](const char* name) {
        const json value = object.value(name, json());
        return value.is_number_unsigned() && value.get<uint64_t>() < max_vocab_size
                   ? std::optional(value.get<int>())
                   : std::nullopt;
    };
    return {one("bos_token_id"), one("pad_token_id"), numbers_of(object, "eos_token_id", path)};
}

}  // namespace

SpecialIds first_known(std::initializer_list<SpecialIds> choices, int V) {
    SpecialIds known;
    for (SpecialIds ids : choices) {
        std::erase_if(ids.ends, [&](int id) { return id >= V; });
        if (known.ends.empty()) known.ends = ids.ends;
        if (!known.begin && ids.begin.value_or(V) < V) known.begin = ids.begin;
        if (!known.pad && ids.pad.value_or(V) < V) known.pad = ids.pad;
    }
    return known;
}

ModelIds read_model_ids(const std::string& folder) {
    ModelIds ids;
    const std::string prefix = folder.empty() ? "" : folder + "/";
    if (const json config = read_json(text_of(prefix + "config.json")).value; config.is_object()) {
        ids.config = ids_of(config, prefix + "config.json");
        const json& size = config.value("vocab_size", json());
        if (size.is_number_unsigned() && size.get<uint64_t>() <= max_vocab_size)
            ids.vocab_size = size.get<int>();
    }
    if (const std::string path = prefix + "generation_config.json"; is_there(path)) {
        const json config = read_json_object(path);
        ids.generation_config = text_of(path);
        ids.generation = ids_of(config, path);
        const std::set<std::string> ours = {"bos_token_id",       "eos_token_id",         "pad_token_id",
                                            "_from_model_config", "transformers_version", "use_cache"};
        for (const auto& [name, value] : config.items()) {
            if (ours.contains(name) || value.is_null() || value == false) continue;
            ids.generation_settings += (ids.generation_settings.empty() ? "" : ", ") + json(name).dump();
        }
    }
    return ids;
}
