// tokenize: texts to token shards.
//   tokenize --tokenizer gpt2|byte|FILE [--val-fraction 0] --out DIR FILE...
//   writes DIR/train_000000.bin, DIR/val_000000.bin and so on, 100 million tokens per shard, all or none.
//   ... | tokenize --stream [--prefix fineweb_] [--val-tokens N] --out DIR
//   writes the documents on standard input (document_stream.h) as shards, each as soon as it is full. The
//   same command with the same input continues after the finished shards (restartable_shards.h).
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/folder_lock.h"
#include "system/mapped_file.h"
#include "system/status_line.h"
#include "system/stop_signal.h"
#include "system/text_encoding.h"
#include "system/utf8_stream.h"
#include "trainer/command_line/command_line.h"
#include "trainer/command_line/help_text.h"
#include "trainer/data/data_files.h"
#include "trainer/data/document_stream.h"
#include "trainer/data/input_files.h"
#include "trainer/data/restartable_shards.h"
#include "trainer/data/stream_tokenizer.h"
#include "trainer/data/token_shard.h"
#include "trainer/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

static constexpr double below_1 = 0.9999999;
static constexpr size_t piece_bytes = size_t{4} << 20;  // bytes of text that are tokenized at a time

struct Options {
    std::string tokenizer = "gpt2";
    double val_fraction = 0;
    std::string out;
    std::vector<std::string> files;
    size_t shard_tokens = 100'000'000;
    // --stream
    bool stream = false, until_end = false;
    std::string prefix, split = "first", field = "text";
    std::optional<size_t> val_tokens;
    int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
};

// Writes one split of the texts to its series of shards.
class SplitWriter {
public:
    SplitWriter(const Options& options, const std::string& prefix, Tokenizer& tokenizer,
                const std::function<void(size_t)>& appended)
        : series_(options.out, prefix, options.shard_tokens), tokenizer_(tokenizer), appended_(appended) {}

    // Appends a text, preceded by end-of-text (if the tokenizer has it) unless it is the first text.
    void append(std::string_view text) {
        if (text.empty()) return;
        if (const std::optional<int> end = tokenizer_.end_of_text(); end && !series_.shards().empty()) {
            const uint16_t token = static_cast<uint16_t>(*end);
            series_.append({&token, 1});
        }
        tokenizer_.encode_in_pieces(text, piece_bytes, [&](std::span<const uint16_t> tokens) {
            if (stop_requested()) throw Error("interrupted; nothing was written");
            series_.append(tokens);
            appended_(tokens.size());
        });
    }
    TokenShardSeries& series() { return series_; }

private:
    TokenShardSeries series_;
    Tokenizer& tokenizer_;
    const std::function<void(size_t tokens)>& appended_;
};

// UsageError if the folder holds shards of an earlier call, which would be read together with the new ones.
static void refuse_used_folder(const std::string& folder) {
    CHECK(!is_there(folder) || is_folder(folder), "--out {}: is not a folder", folder);
    for (const fs::path& path : entries_of(folder)) {
        const std::string name = path.filename();
        const bool shard = (name.starts_with("train_") || name.starts_with("val_")) && name.ends_with(".bin");
        CHECK(!shard, "--out {}: already holds {}; choose another folder or remove its shards", folder, name);
    }
}

// Makes the output folder. The destructor removes the folders that it made if they are still empty.
class OutputFolder {
public:
    explicit OutputFolder(const std::string& path) {
        for (fs::path folder = fs::absolute(path).lexically_normal(); !folder.empty() && !fs::exists(folder);
             folder = folder.parent_path()) {
            if (folder.has_filename()) made_.push_back(folder);
        }
        std::error_code failed;
        fs::create_directories(path, failed);
        CHECK(!failed, "--out {}: the folder cannot be made: {}", path, failed.message());
    }
    ~OutputFolder() {
        std::error_code ignored;
        for (const fs::path& folder : made_) fs::remove(folder, ignored);  // removes only an empty folder
    }

private:
    std::vector<fs::path> made_;  // the innermost first
};

// The texts in a folder, or the file itself.
static std::vector<std::string> texts_of(const std::string& path) {
    if (!is_folder(path)) return {path};
    std::vector<std::string> texts;
    for (const InputFile& file : input_files(path)) texts.push_back(file.path);
    return texts;
}

static void tokenize(const Options& options) {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
    std::vector<MappedFile> files;
    size_t total = 0;
    for (const std::string& path : options.files) {
        for (const std::string& text : texts_of(path)) total += files.emplace_back(text).bytes().size();
    }
    CHECK(total > 0, "{}: there is no text to tokenize", options.files[0]);
    for (const MappedFile& file : files) {
        CHECK(!begins_as_shard(file.bytes()), "{}: is already a token shard; expected texts", file.path());
        check_encoding(file.path(), file.bytes());
    }
    refuse_used_folder(options.out);
    const OutputFolder folder(options.out);
    const FolderLock lock(options.out, "writing shards");
    refuse_used_folder(options.out);  // another process may have been faster
    for (const char* prefix : {"train_", "val_"}) remove_leftovers(options.out, prefix, ".bin");
    StatusLine line(stderr);
    Progress progress(line, "tokenize", "thousand tokens", 0);
    size_t tokens = 0;
    const std::function<void(size_t)> appended = [&](size_t more) { progress.at((tokens += more) / 1000); };
    SplitWriter train(options, "train", *tokenizer, appended), val(options, "val", *tokenizer, appended);

    // The last part of all bytes is for validation; the file in which it begins is divided between both
    // splits.
    const size_t val_bytes =
        total - static_cast<size_t>(static_cast<double>(total) * (1 - options.val_fraction));
    size_t rest = total;
    for (const MappedFile& file : files) {
        const std::string_view text = file.bytes();
        rest -= text.size();
        const size_t held_out = std::min(text.size(), val_bytes > rest ? val_bytes - rest : 0);
        const size_t cut = start_of_character(text, text.size() - held_out);
        train.append(text.substr(0, cut));
        val.append(text.substr(cut));
    }
    CHECK(!train.series().shards().empty(), "--val-fraction {}: is so large that nothing is left to train on",
          options.val_fraction);
    CHECK(options.val_fraction == 0 || !val.series().shards().empty(),
          "--val-fraction {}: is too small to hold out anything", options.val_fraction);
    for (SplitWriter* split : {&train, &val}) split->series().close();
    train.series().commit();
    try {
        val.series().commit();
    } catch (...) {
        train.series().withdraw();
        throw;
    }
    line.erase();
    for (SplitWriter* split : {&train, &val}) {
        for (const TokenShardWriter& shard : split->series().shards())
            fmt::print("{}: {} tokens\n", shard.path(), shard.size());
    }
}

static void tokenize_standard_input(const Options& options) {
    const OutputFolder folder(options.out);
    RestartableShards shards({.folder = options.out,
                              .prefix = options.prefix,
                              .split = options.split,
                              .tokenizer = std::string(make_tokenizer(options.tokenizer)->name()),
                              .shard_tokens = options.shard_tokens,
                              .val_tokens = options.val_tokens});
    if (shards.complete()) {
        fmt::print("{}: all shards are finished already\n", options.out);
        return;
    }
    StatusLine line(stderr);
    Progress progress(line, "tokenize", "documents read", 0);
    std::optional<DocumentStream> documents;
    documents.emplace(STDIN_FILENO, "standard input", options.field, options.until_end, [&] {
        if (stop_requested())
            throw Error("interrupted; the same command continues after the finished shards");
        progress.at(documents->count());
    });
    tokenize_stream(*documents, shards, options.tokenizer, options.threads, [&](const std::string& path) {
        line.erase();
        fmt::print("{}: {} tokens\n", path, TokenShard(path).size());
        std::fflush(stdout);
    });
}

// UsageError for options that do not belong to the given source of texts: files, or standard input.
static void check_source(const Options& options, const CLI::App& app) {
    const std::vector<std::string> of_files = {"FILE", "--val-fraction"};
    const std::vector<std::string> of_stream = {"--prefix", "--split",     "--val-tokens",
                                                "--field",  "--until-end", "--threads"};
    for (const std::string& name : options.stream ? of_files : of_stream) {
        CHECK(app.get_option(name)->count() == 0, "{} {} --stream", name,
              options.stream ? "excludes" : "needs");
    }
    CHECK(options.prefix.find('/') == std::string::npos &&
              options.prefix == replace_invalid_utf8(options.prefix),
          "--prefix {}: expected the beginning of a file's name, in UTF-8 and without /", options.prefix);
    CHECK(options.stream || !options.files.empty(),
          "FILE is required, or --stream for documents on standard input");
}

int main(int argc,
         char** argv) {  // NOLINT(bugprone-exception-escape): before run_main, only wrong code here throws
    Options options;
    CLI::App app("Turns texts into token shards for training.", "tokenize");
    add_word_or_file(app, "--tokenizer", options.tokenizer, {"gpt2", "byte"},
                     "how texts become tokens; FILE is a tokenizer.json");
    add_number(app, "--val-fraction", options.val_fraction, 0, below_1,
               "fraction of the texts, taken from the end, to hold out for validation");
    add_text(app, "--out", options.out, "DIR",
             "folder to write the shards to: train_000000.bin, val_000000.bin and so on")
        ->required();
    add_number(app, "--shard-tokens", options.shard_tokens, 1, size_t{4'000'000'000},
               "tokens in a shard; the last one may have fewer");
    app.add_option("FILE", options.files,
                   "texts or folders of texts, in order; an end-of-text token separates them if the "
                   "tokenizer has one");
    auto* stream = app.add_option_group("documents from standard input");
    stream->add_flag("--stream", options.stream,
                     "read documents from standard input, one JSON object per line; after an interruption, "
                     "the same command continues where it stopped");
    add_text(*stream, "--prefix", options.prefix, "TEXT", "prefix of the shards' file names");
    add_word(*stream, "--split", options.split, {"first", "train", "val"},
             "first: hold out the first tokens for validation; train or val: write only shards of that kind");
    const auto set_val_tokens = [&](const std::string& text) {
        options.val_tokens = number_between("--val-tokens", text, size_t{0}, SIZE_MAX);
    };
    add_parsed(*stream, "--val-tokens", "N", "", set_val_tokens,
               "with --split first: number of tokens to hold out; 0: none [one shard, or a tenth of an input "
               "that is shorter than a shard]");
    add_text(*stream, "--field", options.field, "KEY", "key of the text in a document's JSON object");
    stream->add_flag("--until-end", options.until_end,
                     "accept the input as complete only if its last line is {\"end\": true}");
    add_number(*stream, "--threads", options.threads, 1, 1024, "number of threads that tokenize documents");
    set_examples(
        app, {{"tokenize all texts of a folder; the last hundredth is for validation",
               "tokenize --val-fraction 0.01 --out shards books"},
              {"write bytes instead of GPT-2's tokens", "tokenize --tokenizer byte --out shards my_book.txt"},
              {"tokenize documents, one JSON object per line",
               "zcat documents.jsonl.gz | tokenize --stream --out shards"}});
    return run_main("tokenize", [&] {
        if (!parse(app, argc, argv, {"--prefix"})) return;
        check_source(options, app);
        stop_on({SIGINT, SIGTERM}, 0);
        answer_stop("\ntokenize: stopping\n");
        if (options.stream) tokenize_standard_input(options);
        else tokenize(options);
    });
}
