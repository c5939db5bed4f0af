#include "trainer/formats/hub_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "system/error.h"
#include "system/file_access.h"
#include "system/file_reader.h"

namespace {

// Short names and the repositories that they stand for on the hub.
const std::map<std::string, std::string> short_names = {{"gpt2", "openai-community/gpt2"},
                                                        {"gpt2-medium", "openai-community/gpt2-medium"},
                                                        {"gpt2-large", "openai-community/gpt2-large"},
                                                        {"gpt2-xl", "openai-community/gpt2-xl"},
                                                        {"distilgpt2", "distilbert/distilgpt2"}};

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

std::string cache_folder() {
    if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
    if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
    if (const std::string caches = variable("XDG_CACHE_HOME"); !caches.empty())
        return caches + "/huggingface/hub";
    return variable("HOME") + "/.cache/huggingface/hub";
}

// True for "gpt2" or "openai-community/gpt2": letters, digits, '-', '_' and '.', with at most one '/'
// between them.
bool is_name(const std::string& text) {
    const auto plain = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || c == '/';
    };
    return !text.empty() && text.size() <= 200 && text.front() != '.' &&
           std::all_of(text.begin(), text.end(), plain) && std::count(text.begin(), text.end(), '/') <= 1 &&
           text.front() != '/' && text.back() != '/' && text.find("..") == text.npos;
}

std::string folder_name(const std::string& name) {
    const size_t slash = name.find('/');
    return "models--" + (slash == name.npos ? name : name.substr(0, slash) + "--" + name.substr(slash + 1));
}
std::string folder_of(const std::string& name) { return cache_folder() + "/" + folder_name(name); }

// The snapshot folder of revision main.
std::optional<std::string> snapshot_of(const std::string& name) {
    const std::string folder = folder_of(name), main = folder + "/refs/main";
    if (!is_there(main)) return std::nullopt;
    std::string snapshot(FileReader(main).text());
    snapshot.erase(
        std::find_if(snapshot.begin(), snapshot.end(), [](unsigned char c) { return !std::isalnum(c); }),
        snapshot.end());
    return folder + "/snapshots/" + snapshot;
}

std::string fetch_command(const std::string& repository) {
    return fmt::format(
        "hf download {} config.json generation_config.json 'model*.safetensors*' tokenizer.json "
        "tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt "
        "chat_template.jinja",
        repository);
}

}  // namespace

std::string pickle_message(const std::string& folder, const std::string& name) {
    return fmt::format(
        "{}: has only a pickle of PyTorch (pytorch_model.bin), which is not read; expected safetensors, "
        "which "
        "transformers writes: python3 -c \"from transformers import GPT2LMHeadModel, AutoTokenizer; "
        "GPT2LMHeadModel.from_pretrained('{}').save_pretrained('FOLDER', safe_serialization=True); "
        "AutoTokenizer.from_pretrained('{}').save_pretrained('FOLDER')\"",
        folder, name, name);
}

std::string fetch_command_for(const std::string& snapshot) {
    const size_t begin = snapshot.find("models--"), end = snapshot.find('/', begin);
    if (begin == snapshot.npos || end == snapshot.npos) return "";
    std::string name = snapshot.substr(begin + 8, end - begin - 8);
    if (const size_t dashes = name.find("--"); dashes != name.npos) name.replace(dashes, 2, "/");
    return fetch_command(name);
}

bool is_gpt2_of_openai(const std::string& name) {
    return std::any_of(short_names.begin(), short_names.end(), [&](const auto& pair) {
        return name == pair.first || name == pair.second ||
               name.find("/" + folder_name(pair.first) + "/") != name.npos ||
               name.find("/" + folder_name(pair.second) + "/") != name.npos;
    });
}

std::string cached_model(const std::string& name) {
    if (!is_name(name)) return "";
    const auto known = short_names.find(name);
    const std::string repository = known == short_names.end() ? name : known->second;
    std::vector<std::string> names = {repository};
    for (const auto& [alias, whole] : short_names)  // a cache made before the models had an organization
        if (whole == repository) names.push_back(alias);
    for (const std::string& each : names) {
        const std::optional<std::string> snapshot = snapshot_of(each);
        if (!snapshot) continue;
        const bool has_weights = is_there(*snapshot + "/model.safetensors") ||
                                 is_there(*snapshot + "/model.safetensors.index.json");
        CHECK(has_weights || !is_there(*snapshot + "/pytorch_model.bin"), "{}",
              pickle_message(*snapshot, name));
        CHECK(is_there(*snapshot + "/config.json") && has_weights,
              "{}: {} has no config.json or no model.safetensors; expected a whole download: {}", name,
              *snapshot, fetch_command(repository));
        return *snapshot;
    }
    CHECK(known == short_names.end() && name.find('/') == name.npos,
          "{}: is not there, nor in Hugging Face's cache {}; {}fetch it with: {}", name, cache_folder(),
          known == short_names.end() ? "if it is a model of the hub, " : "", fetch_command(repository));
    return "";
}
