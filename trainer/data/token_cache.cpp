#include "trainer/data/token_cache.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/json_text.h"
#include "trainer/data/progress_notes.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// A temporary file that is still being written changes all the time, so one unchanged for this long is
// abandoned.
constexpr auto abandoned_after = std::chrono::hours(1);

std::string token_cache_folder() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    return (cache != nullptr && *cache != '\0' ? fs::path(cache)
            : home != nullptr && *home != '\0' ? fs::path(home) / ".cache"
                                               : fs::temp_directory_path()) /
           "flatgpt";
}

// The beginning of the names of a stream's cached shards. A hash of the absolute paths identifies the
// texts; the first one's name is cut to 100 bytes, since a file name has at most 255.
std::string cache_prefix(const TextStream& texts, std::string_view tokenizer) {
    std::string all;
    for (const TextPart& part : texts.parts)
        all += fs::absolute(part.path).lexically_normal().string() + (texts.parts.size() > 1 ? "\n" : "");
    const std::string first = fs::path(texts.parts[0].path).filename().string().substr(0, 100);
    return fmt::format("{:016x}-{}.{}{}{}", XXH3_64bits(all.data(), all.size()), first, tokenizer,
                       texts.part.empty() ? "" : ".", texts.part);
}

size_t bytes_of(const TextPart& part) {
    const size_t size = FileReader(part.path).size();
    return std::min(part.end, size) - std::min(part.begin, size);
}

// A hash of the texts and of the tokenizer that makes tokens of them.
uint64_t hash_of(const TextStream& texts, const TextReader& reader) {
    const std::string_view tokenizer = reader.tokenizer.name();
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
    XXH3_64bits_reset_withSeed(state.get(), XXH3_64bits(tokenizer.data(), tokenizer.size()));
    ProgressNotes progress(reader.options.note, reader.options.note_seconds);
    size_t done = 0;
    for (const TextPart& part : texts.parts) {
        progress.at([&] { return fmt::format("reading text {} of {}", done + 1, texts.parts.size()); });
        const size_t size = bytes_of(part);  // so that a text's end counts
        XXH3_64bits_update(state.get(), &size, sizeof(size));
        FileReader(part.path).read_pieces(part.begin, part.end, [&](std::string_view piece) {
            if (reader.is_stopped())
                throw Error(fmt::format("interrupted while {} was being read", texts.name));
            XXH3_64bits_update(state.get(), piece.data(), piece.size());
        });
        done++;
    }
    return XXH3_64bits_digest(state.get());
}

std::string list_path(const std::string& folder, const std::string& prefix) {
    return folder + "/" + prefix + ".json";
}

json json_of(const TextFindings& f) {
    return {{"marked", f.marked},
            {"not_utf8", f.not_utf8},
            {"first_bytes", f.first_bytes},
            {"unread_ends", f.unread_ends}};
}

TextFindings findings_of(const json& object) {
    return {.marked = object.at("marked").get<std::vector<std::string>>(),
            .not_utf8 = object.at("not_utf8").get<std::vector<std::string>>(),
            .first_bytes = object.at("first_bytes").get<std::string>(),
            .unread_ends = object.at("unread_ends").get<size_t>()};
}

struct StreamTokens {
    std::vector<TokenShard> shards;
    TextFindings findings;
};

// Beside the shards, a list says how many they are, and what was found in the texts.
// Without a valid cache there are no shards.
StreamTokens read_cache(const std::string& folder, const std::string& prefix, const std::string& name,
                        uint64_t hash) {
    StreamTokens cache;
    try {
        if (!is_there(list_path(folder, prefix))) return {};
        const json list = read_json_object(list_path(folder, prefix));
        cache.findings = findings_of(list.at("findings"));
        for (size_t i = 0; i < list.at("shards").get<size_t>(); i++) {
            cache.shards.emplace_back(TokenShardSeries::path_of(folder, prefix, i), name);
            if (cache.shards.back().source_hash() != hash) return {};
        }
    } catch (const Error&) {
        return {};  // a damaged or unreadable cache, or another kind of file, is made again
    } catch (const json::exception&) { return {}; }
    return cache;
}

// Passes the tokens of the texts to consume, with progress.
template <class Consume>
TextFindings tokenize(const TextStream& texts, const TextReader& reader, const std::string& kept_in,
                      const Consume& consume) {
    size_t total = 0;
    for (const TextPart& part : texts.parts) total += bytes_of(part);
    ProgressNotes progress(reader.options.note, reader.options.note_seconds);
    const JoinedTexts* stream = nullptr;
    JoinedTexts joined(reader.tokenizer, [&](std::span<const uint16_t> tokens) {
        if (reader.is_stopped())
            throw Error(fmt::format("interrupted while {} was being tokenized", texts.name));
        consume(tokens);
        progress.at([&] {
            return fmt::format("tokenizing {}: {} of {} MiB; {}", texts.name, stream->bytes() >> 20,
                               total >> 20, kept_in);
        });
    });
    stream = &joined;
    for (const TextPart& part : texts.parts) joined.append(part);
    return joined.findings();
}

void write_cache(const std::string& folder, const std::string& prefix, uint64_t hash, const TextStream& texts,
                 const TextReader& reader) {
    std::error_code failed;  // if it fails, the writer below reports why
    fs::create_directories(folder, failed);
    remove_leftovers(folder, prefix, "", abandoned_after);
    TokenShardSeries series(folder, prefix, reader.options.shard_tokens, hash);
    const TextFindings findings =
        tokenize(texts, reader, fmt::format("this is done once, and kept in {}", folder),
                 [&](std::span<const uint16_t> tokens) { series.append(tokens); });
    series.close();
    const json list = {{"shards", series.shards().size()}, {"findings", json_of(findings)}};
    write_atomically(list_path(folder, prefix),
                     list.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
    series.commit();
}

// The tokens in a cache, which is made if there is none. No shards if it cannot be written.
StreamTokens find_or_make_cache(const TextStream& texts, uint64_t hash, TextReader& reader) {
    const std::string folder = token_cache_folder(), prefix = cache_prefix(texts, reader.tokenizer.name());
    StreamTokens cache = read_cache(folder, prefix, texts.name, hash);
    if (!cache.shards.empty()) return cache;
    try {
        write_cache(folder, prefix, hash, texts, reader);
        return read_cache(folder, prefix, texts.name, hash);
    } catch (const Error& error) {
        const bool of_text =
            dynamic_cast<const UsageError*>(&error) || dynamic_cast<const ReadError*>(&error);
        if (of_text || reader.is_stopped()) throw;
        reader.say_uncached(texts.name, error);
        return {};
    }
}

StreamTokens keep_in_memory(const TextStream& texts, const TextReader& reader) {
    const size_t most = reader.options.shard_tokens;
    std::vector<std::vector<uint16_t>> shards(1);
    StreamTokens kept;
    kept.findings = tokenize(texts, reader, "they are kept in memory", [&](std::span<const uint16_t> tokens) {
        while (!tokens.empty()) {
            if (shards.back().size() == most) shards.emplace_back();
            const size_t part = std::min(tokens.size(), most - shards.back().size());
            shards.back().insert(shards.back().end(), tokens.begin(),
                                 tokens.begin() + static_cast<ptrdiff_t>(part));
            tokens = tokens.subspan(part);
        }
    });
    for (std::vector<uint16_t>& tokens : shards) kept.shards.emplace_back(std::move(tokens), texts.name);
    return kept;
}

}  // namespace

void TextReader::say_findings() const {
    if (!options.note) return;
    for (const std::string& line : findings.notes()) options.note(line);
}

void TextReader::say_uncached(const std::string& texts, const Error& why) {
    if (options.note && !said)
        options.note(fmt::format("{}; the tokens of {} are kept in memory, and made again by the next run",
                                 why.what(), texts));
    said = true;
}

std::vector<TokenShard> tokens_of(const TextStream& texts, TextReader& reader) {
    CHECK(reader.tokenizer.name() != "none",
          "{}: is text, which --tokenizer none cannot tokenize; expected token shards, or another "
          "--tokenizer",
          texts.name);
    size_t bytes = 0;
    for (const TextPart& part : texts.parts) bytes += bytes_of(part);
    const uint64_t hash = hash_of(texts, reader);
    StreamTokens tokens;
    if (bytes >= reader.options.cache_bytes) tokens = find_or_make_cache(texts, hash, reader);
    if (tokens.shards.empty()) tokens = keep_in_memory(texts, reader);
    reader.findings.add(tokens.findings);
    for (TokenShard& shard : tokens.shards) shard.set_content_hash(hash);
    return std::move(tokens.shards);
}
