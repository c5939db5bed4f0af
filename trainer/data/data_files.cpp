#include "trainer/data/data_files.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "system/atomic_file.h"
#include "system/error.h"
#include "system/mapped_file.h"
#include "trainer/data/input_files.h"

namespace fs = std::filesystem;

static constexpr double holdout_fraction = 0.1;
static constexpr size_t piece_bytes = size_t{4} << 20;  // text that is tokenized at a time

// A temporary file that is still being written changes all the time, so one unchanged for this long is
// abandoned.
static constexpr auto abandoned_after = std::chrono::hours(1);

static std::string cache_name(const std::string& text_path, std::string_view tokenizer,
                              std::string_view part) {
    return fmt::format("{}.{}{}{}{}", text_path, tokenizer, part.empty() ? "" : ".", part, cache_suffix);
}

// The cache's name in the folder for texts that cannot have one beside them. A hash of the absolute path
// identifies the text; its file name is cut to 100 bytes, since a file name has at most 255.
static std::string fallback_cache_name(const std::string& text_path, std::string_view tokenizer,
                                       std::string_view part) {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const fs::path folder = (cache != nullptr && *cache != '\0' ? fs::path(cache)
                             : home != nullptr && *home != '\0' ? fs::path(home) / ".cache"
                                                                : fs::temp_directory_path()) /
                            "flatgpt";
    const std::string absolute = fs::absolute(text_path).lexically_normal();
    const std::string file = fmt::format("{:016x}-{}", XXH3_64bits(absolute.data(), absolute.size()),
                                         fs::path(text_path).filename().string().substr(0, 100));
    return cache_name(folder / file, tokenizer, part);
}

static std::optional<TokenShard> valid_cache(const std::string& path, const std::string& name,
                                             uint64_t source_hash) {
    std::error_code unknown;
    if (!fs::exists(path, unknown)) return std::nullopt;
    try {
        TokenShard shard(path, name);
        if (shard.source_hash() == source_hash) return shard;
    } catch (const Error&) {
        // A damaged or unreadable cache, or another kind of file, is made again.
    }
    return std::nullopt;
}

static bool is_stopped(const DataOptions& options) { return options.stop && options.stop(); }

// A text or a part of one, from which tokens are made. `part` ("", "train" or "val") appears in the
// cache's name, `name` in messages.
struct Text {
    std::string path;
    std::string_view bytes, part;
    std::string name;
};

// The tokenizer and options for all texts of a call. Only the first cache that cannot be written is
// reported.
struct TextReader {
    Tokenizer& tokenizer;
    const DataOptions& options;
    bool said = false;

    void say_uncached(const std::string& text, const Error& why) {
        if (options.note && !said)
            options.note(fmt::format(
                "{}; the tokens of {} are kept in memory, and made again by the next run", why.what(), text));
        said = true;
    }
};

// A file's tokens. Those of a text may be in a cache that has only a temporary name, and gets its final
// one in open(). If no cache can be written, they stay in memory.
class TokenFile {
public:
    explicit TokenFile(const std::string& path) : shard_(TokenShard(path)) {}
    TokenFile(const Text& text, TextReader& reader);

    const std::string& name() const { return name_.empty() ? shard_->name() : name_; }
    size_t size() const { return shard_ ? shard_->size() : writer_->size(); }
    TokenShard open(TextReader& reader) &&;

private:
    void write_cache(const std::string& cache, uint64_t source_hash, const Text& text,
                     const TextReader& reader);
    void keep_in_memory(const Text& text, const TextReader& reader);

    std::string name_;
    std::optional<TokenShard> shard_;
    std::optional<TokenShardWriter> writer_;
};

// Passes the tokens of a text to `consume` and reports progress from time to time.
template <class Consume>
static void tokenize(const Text& text, const TextReader& reader, const std::string& kept_in,
                     const Consume& consume) {
    using Clock = std::chrono::steady_clock;
    const DataOptions& options = reader.options;
    const auto seconds = [](double s) {
        return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
    };
    auto due = Clock::now() + seconds(options.note_seconds);
    size_t done = 0;
    reader.tokenizer.encode_in_pieces(text.bytes, piece_bytes, [&](std::span<const uint16_t> tokens) {
        if (is_stopped(options))
            throw Error(
                fmt::format("interrupted while {} was being tokenized; nothing was written", text.name));
        consume(tokens);
        done = std::min(done + piece_bytes, text.bytes.size());  // accurate to about a word
        if (!options.note || Clock::now() < due) return;
        due = Clock::now() + seconds(5 * options.note_seconds);
        options.note(fmt::format("tokenizing {}: {} of {} MiB; {}", text.name, done >> 20,
                                 text.bytes.size() >> 20, kept_in));
    });
}

TokenFile::TokenFile(const Text& text, TextReader& reader) : name_(text.name) {
    const std::string_view tokenizer = reader.tokenizer.name();
    CHECK(tokenizer != "none",
          "{}: is text, which --tokenizer none cannot tokenize; expected token shards, or another "
          "--tokenizer",
          text.path);
    const uint64_t seed = XXH3_64bits(tokenizer.data(), tokenizer.size());
    const uint64_t source_hash = XXH3_64bits_withSeed(text.bytes.data(), text.bytes.size(), seed);
    const std::string caches[] = {cache_name(text.path, tokenizer, text.part),
                                  fallback_cache_name(text.path, tokenizer, text.part)};
    for (const std::string& cache : caches)
        if ((shard_ = valid_cache(cache, name_, source_hash))) return;

    std::optional<Error> why;  // why there is no cache beside the text
    for (const std::string& cache : caches) {
        try {
            write_cache(cache, source_hash, text, reader);
            return;
        } catch (const UsageError&) {
            throw;  // the text is too long for a shard
        } catch (const Error& error) {
            if (is_stopped(reader.options)) throw;
            if (!why) why = error;
        }
        writer_.reset();
    }
    reader.say_uncached(text.name, *why);
    keep_in_memory(text, reader);
}

void TokenFile::write_cache(const std::string& cache, uint64_t source_hash, const Text& text,
                            const TextReader& reader) {
    const fs::path folder = fs::path(cache).parent_path();
    std::error_code failed;  // if it fails, the writer below reports why
    if (!folder.empty()) fs::create_directories(folder, failed);
    remove_leftovers(folder.empty() ? "." : folder.string(), fs::path(cache).filename(), "", abandoned_after);
    writer_.emplace(cache, source_hash);
    tokenize(text, reader, fmt::format("this is done once, and kept in {}", cache),
             [&](std::span<const uint16_t> tokens) { writer_->append(tokens); });
    writer_->close();
}

void TokenFile::keep_in_memory(const Text& text, const TextReader& reader) {
    std::vector<uint16_t> all;
    tokenize(text, reader, "they are kept in memory",
             [&](std::span<const uint16_t> tokens) { all.insert(all.end(), tokens.begin(), tokens.end()); });
    shard_.emplace(std::move(all), name_);
}

TokenShard TokenFile::open(TextReader& reader) && {
    if (shard_) return std::move(*shard_);
    TokenShard unnamed(writer_->temporary_path(), name_);  // stays mapped even if its name changes or goes
    try {
        writer_->commit();
    } catch (const Error& error) {
        reader.say_uncached(name_, error);
        return unnamed;
    }
    return TokenShard(writer_->path(), name_);
}

UsageError too_few_tokens(const std::string& name, size_t tokens, int T) {
    return UsageError(
        fmt::format("{}: {} tokens are too few for a sequence of {} and its next token; use a longer text or "
                    "a shorter sequence",
                    name, tokens, T));
}

// Checks the files of one split before any of their caches gets its final name: one of them must have T+1
// tokens.
static std::vector<TokenFile> check(std::vector<TokenFile> files, int T) {
    const bool enough = std::any_of(files.begin(), files.end(), [&](const TokenFile& file) {
        return file.size() > static_cast<size_t>(T);
    });
    if (T > 0 && !enough) throw too_few_tokens(files[0].name(), files[0].size(), T);
    return files;
}

static std::vector<TokenShard> open(std::vector<TokenFile> files, TextReader& reader) {
    std::vector<TokenShard> shards;
    shards.reserve(files.size());
    for (TokenFile& file : files) shards.push_back(std::move(file).open(reader));
    return shards;
}

static std::vector<TokenFile> token_files(const std::vector<InputFile>& inputs, int T, TextReader& reader) {
    std::vector<TokenFile> files;
    for (const auto& [path, is_text] : inputs) {
        if (is_text) {
            const MappedFile text(path);
            files.emplace_back(Text{path, text.bytes(), "", path}, reader);
        } else {
            files.emplace_back(path);
        }
    }
    return check(std::move(files), T);
}

std::vector<TokenShard> open_split(const std::string& pattern, Tokenizer& tokenizer,
                                   const DataOptions& options) {
    TextReader reader{tokenizer, options};
    return open(token_files(input_files(pattern, options.note), options.val_T, reader), reader);
}

// Holds out the last tenth of all texts together, so one text may be divided between both splits.
static DataSplits hold_out(const std::vector<InputFile>& inputs, const DataOptions& options,
                           TextReader& reader) {
    size_t total = 0;
    for (const InputFile& input : inputs) total += MappedFile(input.path).bytes().size();
    // bytes for training, from the current file on
    size_t rest = static_cast<size_t>(static_cast<double>(total) * (1 - holdout_fraction));
    const bool alone = inputs.size() == 1;
    std::vector<TokenFile> train, val;
    for (const auto& [path, is_text] : inputs) {
        const MappedFile file(path);
        const std::string_view text = file.bytes();
        const size_t cut = start_of_character(text, std::min(rest, text.size()));
        if (cut == text.size() && !alone) {
            train.emplace_back(Text{path, text, "", path}, reader);
        } else if (cut == 0 && !alone) {
            val.emplace_back(Text{path, text, "", path}, reader);
        } else {
            train.emplace_back(Text{path, text.substr(0, cut), "train",
                                    path + (alone ? " (without its last tenth)" : " (its beginning)")},
                               reader);
            val.emplace_back(
                Text{path, text.substr(cut), "val", path + (alone ? " (its last tenth)" : " (its end)")},
                reader);
        }
        rest = cut < text.size() ? 0 : rest - cut;  // everything after the divided text is held out
    }
    CHECK(!train.empty() && !val.empty(), "{}: {} bytes of text are too few to hold out a tenth of them",
          inputs[0].path, total);
    train = check(std::move(train), options.train_T);
    val = check(std::move(val), options.val_T);
    return {open(std::move(train), reader), open(std::move(val), reader)};
}

DataSplits open_data(const std::string& train_pattern, const std::string& val_pattern, Tokenizer& tokenizer,
                     const DataOptions& options) {
    TextReader reader{tokenizer, options};
    const std::vector<InputFile> inputs = input_files(train_pattern, options.note);
    const bool texts =
        std::all_of(inputs.begin(), inputs.end(), [](const InputFile& input) { return input.text; });
    if (val_pattern.empty() && texts) return hold_out(inputs, options, reader);
    const std::vector<InputFile> val_inputs =
        val_pattern.empty() ? std::vector<InputFile>() : input_files(val_pattern, options.note);
    std::vector<TokenFile> train = token_files(inputs, options.train_T, reader), val;
    if (!val_pattern.empty()) val = token_files(val_inputs, options.val_T, reader);
    return {open(std::move(train), reader), open(std::move(val), reader)};
}

size_t start_of_character(std::string_view text, size_t at) {
    size_t start = at;
    // A character has at most three continuation bytes. More of them are not UTF-8, and then any cut will
    // do.
    for (int i = 0; i < 3 && start > 0 && start < text.size() && (text[start] & 0xC0) == 0x80; i++) start--;
    return start;
}
