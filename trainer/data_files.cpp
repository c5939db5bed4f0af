#include "data_files.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "error.h"

namespace fs = std::filesystem;

static constexpr double holdout_fraction = 0.1;
static constexpr size_t piece_bytes = size_t{4} << 20;  // of text, tokenized at a time

static constexpr std::string_view cache_suffix = ".cache.bin";

static std::vector<std::string> matching_files(const std::string& pattern) {
    // A file whose name happens to hold a character of patterns is meant as it stands.
    std::error_code unknown;
    if (fs::is_regular_file(pattern, unknown)) return {pattern};
    glob_t matches = {};
    const int result = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &matches);
    std::vector<std::string> files;
    if (result == 0) files.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    globfree(&matches);
    // 'folder/*' means what people put there: a cache beside its text would be the same tokens twice.
    std::erase_if(files, [](const std::string& file) { return file.ends_with(cache_suffix); });
    CHECK(!files.empty(), "no file matches '{}'; expected token shards or .txt files", pattern);
    std::sort(files.begin(), files.end());
    return files;
}

static bool is_text(const std::string& path) { return fs::path(path).extension() == ".txt"; }

static std::string cache_name(const std::string& text_path, std::string_view tokenizer, std::string_view part) {
    return fmt::format("{}.{}{}{}{}", text_path, tokenizer, part.empty() ? "" : ".", part, cache_suffix);
}

// The folder for caches of texts whose own folder cannot be written; a text is known there by its absolute path.
static std::string fallback_cache_name(const std::string& text_path, std::string_view tokenizer, std::string_view part) {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const fs::path folder = (cache != nullptr && *cache != '\0' ? fs::path(cache)
                             : home != nullptr && *home != '\0' ? fs::path(home) / ".cache"
                                                                : fs::temp_directory_path()) /
                            "flatgpt";
    const std::string absolute = fs::absolute(text_path).lexically_normal();
    const std::string file = fmt::format("{:016x}-{}", XXH3_64bits(absolute.data(), absolute.size()), fs::path(text_path).filename().string());
    return cache_name(folder / file, tokenizer, part);
}

static std::optional<TokenShard> valid_cache(const std::string& path, const std::string& name, uint64_t source_hash) {
    std::error_code unknown;
    if (!fs::exists(path, unknown)) return std::nullopt;
    try {
        TokenShard shard(path, name);
        if (shard.source_hash() == source_hash) return shard;
    } catch (const UsageError&) {
        // Damaged, or another kind of file: it is made again.
    }
    return std::nullopt;
}

// The tokens of a text or a part of it. part ("", "train" or "val") and name say which, in the cache's name and in messages.
static TokenShard tokenized(const std::string& text_path, std::string_view text, std::string_view part, const std::string& name,
                            Tokenizer& tokenizer) {
    const uint64_t seed = XXH3_64bits(tokenizer.name().data(), tokenizer.name().size());
    const uint64_t source_hash = XXH3_64bits_withSeed(text.data(), text.size(), seed);
    const std::string beside = cache_name(text_path, tokenizer.name(), part);
    const std::string fallback = fallback_cache_name(text_path, tokenizer.name(), part);
    for (const std::string& cache : {beside, fallback})
        if (std::optional<TokenShard> shard = valid_cache(cache, name, source_hash)) return std::move(*shard);

    const fs::path folder = fs::path(text_path).parent_path();
    const bool writable = faccessat(AT_FDCWD, folder.empty() ? "." : folder.c_str(), W_OK, AT_EACCESS) == 0;
    const std::string& cache = writable ? beside : fallback;
    std::error_code failed;  // the writer says why, if there is no folder then
    if (!writable) fs::create_directories(fs::path(fallback).parent_path(), failed);
    TokenShardWriter writer(cache, source_hash);
    tokenizer.encode_in_pieces(text, piece_bytes, [&](std::span<const uint16_t> tokens) { writer.append(tokens); });
    writer.commit();
    return TokenShard(cache, name);
}

static std::vector<TokenShard> open_files(const std::vector<std::string>& files, Tokenizer& tokenizer) {
    std::vector<TokenShard> shards;
    for (const std::string& file : files) {
        if (is_text(file)) shards.push_back(tokenized(file, MappedFile(file).bytes(), "", file, tokenizer));
        else shards.emplace_back(file);
    }
    return shards;
}

DataSplits open_data(const std::string& train_pattern, const std::string& val_pattern, Tokenizer& tokenizer) {
    const std::vector<std::string> train = matching_files(train_pattern);
    if (!val_pattern.empty()) return {open_files(train, tokenizer), open_files(matching_files(val_pattern), tokenizer)};
    if (train.size() > 1 || !is_text(train[0])) return {open_files(train, tokenizer), {}};

    const MappedFile file(train[0]);
    const size_t cut = start_of_character(file.bytes(), static_cast<size_t>(static_cast<double>(file.bytes().size()) * (1 - holdout_fraction)));
    DataSplits splits;
    splits.train.push_back(tokenized(train[0], file.bytes().substr(0, cut), "train", train[0] + " (without its last tenth)", tokenizer));
    splits.val.push_back(tokenized(train[0], file.bytes().substr(cut), "val", train[0] + " (its last tenth)", tokenizer));
    return splits;
}

size_t start_of_character(std::string_view text, size_t at) {
    size_t start = at;
    // A character has at most three continuation bytes; where there are more, the text is not UTF-8 and may be cut anywhere.
    for (int i = 0; i < 3 && start > 0 && start < text.size() && (text[start] & 0xC0) == 0x80; i++) start--;
    return start;
}
