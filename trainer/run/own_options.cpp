#include "trainer/run/own_options.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "system/error.h"
#include "system/file_access.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/tokenizer_files.h"

namespace {

using nlohmann::json;

std::optional<TrainingState> state_of(const std::string& checkpoint) {
    try {
        return read_state(checkpoint);
    } catch (const Error&) { return std::nullopt; }
}

// The checkpoint folders that path stands for, newest first.
std::vector<std::string> checkpoints_of(const std::string& path) {
    if (!is_run_folder(path)) return {path};
    std::vector<std::string> paths;
    for (const CheckpointFolder& folder : checkpoint_folders(path, CheckpointNames::temporary_too))
        paths.insert(paths.begin(), folder.path);
    return paths;
}

std::optional<TrainingState> newest_state(const std::vector<std::string>& checkpoints) {
    for (const std::string& checkpoint : checkpoints) {
        if (std::optional<TrainingState> state = state_of(checkpoint)) return state;
    }
    return std::nullopt;
}

// The value of --tokenizer for that name: the name itself if it is a word, else the tokenizer's file in the
// newest checkpoint in which it is whole.
std::string place_of_tokenizer(const std::string& name, const std::vector<std::string>& checkpoints) {
    if (is_tokenizer_word(name)) return name;
    for (const std::string& checkpoint : checkpoints) {
        try {
            const std::string file = tokenizer_in(checkpoint);
            if (file.empty()) continue;
            const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(file);
            if (tokenizer->name() == name || tokenizer->former_name() == name) return file;
        } catch (const Error&) {}  // damaged; an older one is tried
    }
    throw UsageError(fmt::format(
        "{}: no checkpoint has the files of the run's tokenizer {}; please name it with --tokenizer",
        checkpoints.front(), name));
}

std::string option_text(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::vector<std::string> own_options(const CLI::App& app, const std::map<std::string, Scope>& scopes,
                                     const std::string& path) {
    const std::vector<std::string> checkpoints = checkpoints_of(path);
    const std::optional<TrainingState> state = newest_state(checkpoints);
    if (!state) return {};
    std::map<std::string, const CLI::Option*> known;
    std::set<std::string> decided;
    for (const CLI::Option* option : options_of(app)) {
        if (option->get_lnames().empty()) continue;
        const std::string& name = option->get_lnames().front();
        known[name] = option;
        if (option->count() == 0) continue;
        decided.insert(name);
        for (const CLI::Option* excluded : option->get_excludes())
            decided.insert(excluded->get_lnames().front());
    }
    json values = state->options;
    for (const auto& [name, value] : state->identity.items()) {
        if (name != "train-data") values[name] = value;  // its value there is a checksum
    }
    std::vector<std::string> words;
    for (const auto& [name, value] : values.items()) {
        const auto option = known.find(name);
        const auto scope = scopes.find(name);
        if (option == known.end() || scope == scopes.end() || decided.contains(name)) continue;
        if (scope->second == Scope::start) continue;
        if (value.is_array()) {
            for (const json& one : value) words.push_back(fmt::format("--{}={}", name, option_text(one)));
            continue;
        }
        const std::string text =
            name == "tokenizer" ? place_of_tokenizer(option_text(value), checkpoints) : option_text(value);
        const bool is_default = text.empty() || (option->second->get_items_expected_max() > 0
                                                     ? text == option->second->get_default_str()
                                                     : text == "false");
        if (!is_default) words.push_back(fmt::format("--{}={}", name, text));
    }
    return words;
}
