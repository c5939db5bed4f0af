#include "trainer/data/shard_tokenizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "system/atomic_file.h"
#include "system/error.h"
#include "system/file_access.h"
#include "system/json_text.h"

using nlohmann::json;

std::string write_shard_tokenizer(const std::string& folder, const Tokenizer& tokenizer) {
    const std::string path = folder + "/tokenizer_of_shards.json";
    write_atomically(path, json{{"tokenizer", tokenizer.name()}}.dump() + "\n");
    return path;
}

namespace {

// True if the list of shards that tokenize --stream keeps names the file.
bool names(const json& list, const std::string& file) {
    for (const json& shard : list.value("shards", json::array()))
        if (shard.value("file", "") == file) return true;
    return false;
}

// The name of the tokenizer that made a shard; empty if no file says so. UsageError for a damaged file.
std::string maker_of(const std::string& shard) {
    static const std::regex form("(.*)(train|val)_[0-9]+\\.bin");
    const std::filesystem::path path(shard), folder = path.parent_path();
    const std::string file = path.filename();
    std::smatch parts;
    if (!std::regex_match(file, parts, form)) return "";
    const std::string prefix = parts[1], split = parts[2];
    for (const std::string& beside :
         {prefix + "shards.json", prefix + split + "_shards.json", std::string("tokenizer_of_shards.json")}) {
        if (!is_there(folder / beside)) continue;
        const json found = read_json_object(folder / beside);
        try {
            const std::string name = found.value("tokenizer", "");
            const bool applies = found.contains("shards") ? names(found, file) : prefix.empty();
            if (applies) return name.substr(0, name.find(" --"));  // without the options behind it
        } catch (const json::exception&) {
            throw UsageError(fmt::format("{}: does not name a tokenizer", (folder / beside).string()));
        }
    }
    return "";
}

// Both make the same tokens of every text but <|endoftext|>.
bool is_gpt2(std::string_view tokenizer) { return tokenizer == "gpt2" || tokenizer == "gpt2-eot"; }

}  // namespace

std::vector<int> text_bytes_of_tokens(const Tokenizer& tokenizer, std::span<const TokenShard> shards,
                                      const Note& say) {
    if (tokenizer.name() == "none") return {};
    for (const TokenShard& shard : shards) {
        std::string maker;
        try {
            maker = maker_of(shard.name());
        } catch (const Error& damaged) {
            say(fmt::format("note: {}; bits per byte are not known", damaged.what()));
            return {};
        }
        if (maker.empty() || maker == tokenizer.name() || maker == tokenizer.former_name() ||
            (is_gpt2(maker) && is_gpt2(tokenizer.name())))
            continue;
        say(fmt::format(
            "note: {} was made by the tokenizer {}, not by {}, so that bits per byte are not known",
            shard.name(), maker, tokenizer.name()));
        return {};
    }
    std::vector<int> bytes;
    for (int id = 0; id < tokenizer.vocab_size(); id++)
        bytes.push_back(tokenizer.is_special(id) ? 0 : static_cast<int>(tokenizer.token_bytes(id).size()));
    return bytes;
}
