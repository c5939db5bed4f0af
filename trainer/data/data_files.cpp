#include "trainer/data/data_files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/json_text.h"
#include "trainer/data/input_files.h"
#include "trainer/data/joined_texts.h"
#include "trainer/data/progress_notes.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr double holdout_fraction = 0.1;
// A temporary file that is still being written changes all the time, so one unchanged for this long is
// abandoned.
constexpr auto abandoned_after = std::chrono::hours(1);

struct TextStream {
    std::vector<TextPart> parts;
    std::string name;    // in messages
    std::string part{};  // "train" or "val" of texts that are divided: distinguishes their caches
};

// The tokenizer and options for all texts of a call. Only the first cache that cannot be written is
// reported.
struct TextReader {
    Tokenizer& tokenizer;
    const DataOptions& options;
    bool said = false;
    TextFindings findings{};  // of all streams

    void say_findings() const {
        if (!options.note) return;
        for (const std::string& line : findings.notes()) options.note(line);
    }
    void say_uncached(const std::string& texts, const Error& why) {
        if (options.note && !said)
            options.note(
                fmt::format("{}; the tokens of {} are kept in memory, and made again by the next run",
                            why.what(), texts));
        said = true;
    }
    bool is_stopped() const { return options.stop && options.stop(); }
};

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
    JoinedTexts joined(reader.tokenizer, [&](std::span<const Token> tokens) {
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
    TokenShardSeries series(folder, prefix, reader.options.shard_tokens, hash, reader.tokenizer.vocab_size());
    const TextFindings findings =
        tokenize(texts, reader, fmt::format("this is done once, and kept in {}", folder),
                 [&](std::span<const Token> tokens) { series.append(tokens); });
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
    std::vector<std::vector<Token>> shards(1);
    StreamTokens kept;
    kept.findings = tokenize(texts, reader, "they are kept in memory", [&](std::span<const Token> tokens) {
        while (!tokens.empty()) {
            if (shards.back().size() == most) shards.emplace_back();
            const size_t part = std::min(tokens.size(), most - shards.back().size());
            shards.back().insert(shards.back().end(), tokens.begin(),
                                 tokens.begin() + static_cast<ptrdiff_t>(part));
            tokens = tokens.subspan(part);
        }
    });
    for (std::vector<Token>& tokens : shards)
        kept.shards.emplace_back(std::move(tokens), texts.name, reader.tokenizer.vocab_size());
    return kept;
}

// The tokens of the texts as shards, at least one, which may be empty. UsageError for a text that cannot be
// read.
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

// UsageError for a shard that cannot hold the tokens of a tokenizer.
void check_token_bytes(const TokenShard& shard, const Tokenizer& tokenizer) {
    CHECK(tokenizer.name() == "none" || shard.token_bytes() >= token_bytes_for(tokenizer.vocab_size()),
          "{}: its tokens have 16 bits, but the {} tokens of --tokenizer {} need 32; expected shards that "
          "tokenize made with this tokenizer",
          shard.name(), tokenizer.vocab_size(), tokenizer.name());
}

// The shards of a split. Its texts are one stream of tokens, where the first of them stands.
std::vector<TokenShard> open_files(const std::vector<InputFile>& files, TextReader& reader) {
    TextStream texts;
    std::vector<TokenShard> shards;
    std::ptrdiff_t before = 0;  // shards that come before the stream
    for (const InputFile& file : files) {
        if (!file.text) {
            shards.emplace_back(file.path);
            check_token_bytes(shards.back(), reader.tokenizer);
            continue;
        }
        if (texts.parts.empty()) before = std::ssize(shards);
        texts.parts.push_back({file.path});
    }
    if (texts.parts.empty()) return shards;
    texts.name = name_of_texts(texts.parts);
    std::vector<TokenShard> stream = tokens_of(texts, reader);
    shards.insert(shards.begin() + before, std::move_iterator(stream.begin()),
                  std::move_iterator(stream.end()));
    return shards;
}

// UsageError unless a shard has T+1 tokens; T = 0: no requirement.
std::vector<TokenShard> checked(std::vector<TokenShard> shards, int T) {
    const auto is_long = [&](const TokenShard& shard) { return shard.size() > static_cast<size_t>(T); };
    if (T > 0 && std::none_of(shards.begin(), shards.end(), is_long))
        throw too_few_tokens(shards[0].name(), shards[0].size(), T);
    return shards;
}

bool all_texts(const std::vector<InputFile>& files) {
    return std::all_of(files.begin(), files.end(), [](const InputFile& file) { return file.text; });
}

// Holds out the last tenth of all texts together, so one text may be divided between both splits.
DataSplits hold_out(const std::vector<InputFile>& files, TextReader& reader) {
    std::vector<std::string> paths;
    for (const InputFile& file : files) paths.push_back(file.path);
    DividedTexts divided = divide_texts(paths, holdout_fraction);
    CHECK(!divided.train.empty() && !divided.val.empty(),
          "{}: there is too little text to hold out a tenth of it", paths[0]);
    const bool alone = files.size() == 1;
    const auto stream = [&](std::vector<TextPart>& parts, const char* part, const char* one,
                            const char* several) {
        const std::string name = name_of_texts(parts) + (alone ? one : several);
        return tokens_of({.parts = std::move(parts), .name = name, .part = part}, reader);
    };
    DataSplits data;
    data.train = checked(
        stream(divided.train, "train", " (without its last tenth)", " (without the last tenth of all)"),
        reader.options.train_T);
    data.val = checked(stream(divided.val, "val", " (its last tenth)", " (the last tenth of all)"),
                       reader.options.val_T);
    return data;
}

struct AllInputs {
    std::vector<InputFile> train, val;
    bool divides_texts = false;  // validation data are the last tenth of `train`
};

AllInputs find_inputs(const std::vector<std::string>& train_data, const std::vector<std::string>& val_data,
                      const DataOptions& options) {
    AllInputs all;
    check_matches(train_data);  // before the validation data, whose files training may leave out
    if (!val_data.empty()) all.val = input_files(val_data, {.split = Split::val, .note = options.note}).files;
    Inputs train = input_files(
        train_data, {.validation = all.val, .sorted_once = options.sorted_once, .note = options.note});
    all.train = std::move(train.files);
    if (val_data.empty()) all.val = std::move(train.named_val);
    all.divides_texts = all.val.empty() && all_texts(all.train);
    return all;
}

}  // namespace

UsageError too_few_tokens(const std::string& name, size_t tokens, int T) {
    return UsageError(
        fmt::format("{}: {} tokens are too few for a sequence of {} and its next token; use a longer text or "
                    "a shorter sequence",
                    name, tokens, T));
}

std::vector<TokenShard> open_split(const std::vector<std::string>& values, Tokenizer& tokenizer,
                                   const DataOptions& options) {
    TextReader reader{tokenizer, options};
    const Inputs inputs = input_files(values, {.split = Split::val, .note = options.note});
    std::vector<TokenShard> shards = checked(open_files(inputs.files, reader), options.val_T);
    reader.say_findings();
    return shards;
}

DataSplits open_data(const std::vector<std::string>& train_data, const std::vector<std::string>& val_data,
                     Tokenizer& tokenizer, const DataOptions& options) {
    TextReader reader{tokenizer, options};
    const AllInputs inputs = find_inputs(train_data, val_data, options);
    DataSplits data;
    if (inputs.divides_texts) {
        data = hold_out(inputs.train, reader);
    } else {
        data.train = checked(open_files(inputs.train, reader), options.train_T);
        if (!inputs.val.empty()) data.val = checked(open_files(inputs.val, reader), options.val_T);
    }
    reader.say_findings();
    data.train_texts = static_cast<size_t>(std::count_if(inputs.train.begin(), inputs.train.end(),
                                                         [](const InputFile& file) { return file.text; }));
    return data;
}

std::string describe_data(const std::vector<std::string>& train_data,
                          const std::vector<std::string>& val_data, const Note& note) {
    size_t texts = 0, bytes = 0, shards = 0, tokens = 0;
    for (const auto& [path, is_text] : find_inputs(train_data, val_data, {.note = note}).train) {
        if (is_text) texts++, bytes += FileReader(path).size();
        else shards++, tokens += TokenShard(path).size();
    }
    const auto plural = [](size_t count, const char* what) {
        return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
    };
    std::string line = texts > 0 ? fmt::format("{} of {} bytes", plural(texts, "text"), bytes) : "";
    if (shards > 0)
        line += fmt::format("{}{} of {} tokens", line.empty() ? "" : ", ", plural(shards, "shard"), tokens);
    return line;
}
