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
#include "system/json_text.h"
#include "system/mapped_file.h"
#include "trainer/data/progress_notes.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// A temporary file that is still being written changes all the time, so one unchanged for this long is
// abandoned.
constexpr auto abandoned_after = std::chrono::hours(1);

std::string cache_folder() {
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
    const size_t size = MappedFile(part.path).bytes().size();
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
        if (reader.is_stopped()) throw Error(fmt::format("interrupted while {} was being read", texts.name));
        progress.at([&] { return fmt::format("reading text {} of {}", done + 1, texts.parts.size()); });
        const MappedFile file(part.path);
        const std::string_view text = file.bytes().substr(0, part.end).substr(part.begin);
        const size_t size = text.size();  // so that a text's end counts
        XXH3_64bits_update(state.get(), &size, sizeof(size));
        XXH3_64bits_update(state.get(), text.data(), size);
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

struct Cache {
    std::vector<TokenShard> shards;  // empty: there is no valid cache
    TextFindings findings;
};

// Beside the shards, a list says how many they are, and what was found in the texts.
Cache read_cache(const std::string& folder, const std::string& prefix, const std::string& name,
                 uint64_t hash) {
    Cache cache;
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
            throw Error(
                fmt::format("interrupted while {} was being tokenized; nothing was written", texts.name));
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

StreamTokens::StreamTokens(const TextStream& texts, TextReader& reader) : name_(texts.name) {
    CHECK(reader.tokenizer.name() != "none",
          "{}: is text, which --tokenizer none cannot tokenize; expected token shards, or another "
          "--tokenizer",
          texts.name);
    size_t bytes = 0;
    for (const TextPart& part : texts.parts) bytes += bytes_of(part);
    content_hash_ = hash_of(texts, reader);
    const bool is_large = bytes >= reader.options.cache_bytes;
    if (!is_large || !find_or_make_cache(texts, content_hash_, reader)) keep_in_memory(texts, reader);
    reader.findings.add(findings_);
}

// False if no cache can be written.
bool StreamTokens::find_or_make_cache(const TextStream& texts, uint64_t hash, TextReader& reader) {
    const std::string folder = cache_folder(), prefix = cache_prefix(texts, reader.tokenizer.name());
    if (Cache cache = read_cache(folder, prefix, name_, hash); !cache.shards.empty()) {
        shards_ = std::move(cache.shards);
        findings_ = cache.findings;
        return true;
    }
    try {
        write_cache(folder, prefix, hash, texts, reader);
        return true;
    } catch (const UsageError&) {
        throw;  // a text cannot be read
    } catch (const Error& error) {
        if (reader.is_stopped()) throw;
        reader.say_uncached(name_, error);
    }
    series_.reset();
    return false;
}

void StreamTokens::write_cache(const std::string& folder, const std::string& prefix, uint64_t hash,
                               const TextStream& texts, const TextReader& reader) {
    std::error_code failed;  // if it fails, the writer below reports why
    fs::create_directories(folder, failed);
    remove_leftovers(folder, prefix, "", abandoned_after);
    series_.emplace(folder, prefix, reader.options.shard_tokens, hash);
    findings_ = tokenize(texts, reader, fmt::format("this is done once, and kept in {}", folder),
                         [&](std::span<const uint16_t> tokens) { series_->append(tokens); });
    series_->close();
    list_path_ = list_path(folder, prefix);
}

void StreamTokens::keep_in_memory(const TextStream& texts, const TextReader& reader) {
    const size_t most = reader.options.shard_tokens;
    std::vector<std::vector<uint16_t>> shards(1);
    findings_ = tokenize(texts, reader, "they are kept in memory", [&](std::span<const uint16_t> tokens) {
        while (!tokens.empty()) {
            if (shards.back().size() == most) shards.emplace_back();
            const size_t part = std::min(tokens.size(), most - shards.back().size());
            shards.back().insert(shards.back().end(), tokens.begin(),
                                 tokens.begin() + static_cast<ptrdiff_t>(part));
            tokens = tokens.subspan(part);
        }
    });
    for (std::vector<uint16_t>& tokens : shards) shards_.emplace_back(std::move(tokens), name_);
}

size_t StreamTokens::longest() const {
    size_t longest = 0;
    for (const TokenShard& shard : shards_) longest = std::max(longest, shard.size());
    if (series_)
        for (const TokenShardWriter& shard : series_->shards()) longest = std::max(longest, shard.size());
    return longest;
}

std::vector<TokenShard> StreamTokens::open(TextReader& reader) && {
    if (series_) commit(reader);
    for (TokenShard& shard : shards_) shard.set_content_hash(content_hash_);
    return std::move(shards_);
}

void StreamTokens::commit(TextReader& reader) {
    // Mapped by their temporary names, they stay readable even if they cannot be given others.
    for (const TokenShardWriter& shard : series_->shards())
        shards_.emplace_back(shard.temporary_path(), name_);
    try {
        const json list = {{"shards", shards_.size()}, {"findings", json_of(findings_)}};
        write_atomically(list_path_, list.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
        series_->commit();
    } catch (const Error& error) { return reader.say_uncached(name_, error); }
    shards_.clear();
    for (const TokenShardWriter& shard : series_->shards()) shards_.emplace_back(shard.path(), name_);
}
