// tokenize: texts to token shards.
//   tokenize --tokenizer gpt2|byte|FILE [--val-fraction 0] --out DIR FILE...
//   writes DIR/train_000000.bin, DIR/val_000000.bin and so on, 100 million tokens per shard, all or none.
//   tokenize --train 32768 --out DIR/tokenizer.json FILE...
//   makes a tokenizer of 32,768 tokens from texts, which --tokenizer takes and Hugging Face opens.
//   ... | tokenize --stream [--prefix fineweb_] [--val-tokens N] --out DIR
//   writes the documents on standard input (document_stream.h) as shards, each as soon as it is full. The
//   same command with the same input continues after the finished shards (restartable_shards.h).
#include <unistd.h>

#include <csignal>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/folder_lock.h"
#include "system/note.h"
#include "system/status_line.h"
#include "system/stop_signal.h"
#include "system/utf8_stream.h"
#include "trainer/command_line/command_line.h"
#include "trainer/command_line/help_text.h"
#include "trainer/command_line/output_folder.h"
#include "trainer/data/document_stream.h"
#include "trainer/data/input_files.h"
#include "trainer/data/joined_texts.h"
#include "trainer/data/restartable_shards.h"
#include "trainer/data/shard_tokenizer.h"
#include "trainer/data/token_shard.h"
#include "trainer/data/tokenizer_training.h"
#include "trainer/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

static constexpr double below_1 = 0.9999999;

struct Options {
    std::string tokenizer = "gpt2";
    double val_fraction = 0;
    std::string out;
    std::vector<std::string> files;
    size_t shard_tokens = 100'000'000;
    // --stream
    bool stream = false, bos = false, until_end = false, skip_bad = false;
    std::string prefix, split = "first", field = "text", place_field;
    std::optional<size_t> val_tokens;
    // --train
    size_t vocabulary = 0;  // 0: no tokenizer is made
    std::string pattern = "gpt2";
    std::vector<std::string> special = {"<|endoftext|>"};
    size_t most_words = 20'000'000;
    int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
};

static void print_result(const std::string& line) { write_output(line + "\n", "the result"); }

// Writes one split of the texts to its series of shards.
class SplitWriter {
public:
    SplitWriter(const Options& options, const std::string& prefix, Tokenizer& tokenizer,
                const std::function<void(size_t)>& appended)
        : series_(options.out, prefix, options.shard_tokens, 0, tokenizer.vocab_size()),
          texts_(
              tokenizer,
              [&](std::span<const Token> tokens) {
                  if (stop_requested()) throw Error("interrupted; nothing was written");
                  series_.append(tokens);
                  appended(tokens.size());
              },
              options.bos) {}
    SplitWriter(const SplitWriter&) = delete;

    void append(const std::vector<TextPart>& parts) {
        for (const TextPart& part : parts) texts_.append(part);
    }
    const TextFindings& findings() const { return texts_.findings(); }
    TokenShardSeries& series() { return series_; }

private:
    TokenShardSeries series_;
    JoinedTexts texts_;
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

static std::vector<std::string> paths_of(const std::vector<InputFile>& files) {
    std::vector<std::string> paths;
    for (const auto& [path, is_text] : files) {
        CHECK(is_text, "{}: is already a token shard; expected texts", path);
        paths.push_back(path);
    }
    return paths;
}

// The texts that are named, and those in folders that are named. Files of folders that are named val beside
// others named train are the validation split.
static DividedTexts texts_of(const Options& options) {
    const Note note = [](const std::string& line) { note_on_stderr("tokenize: " + line); };
    const Inputs inputs = input_files(options.files, {.note = note});
    const std::vector<std::string> train = paths_of(inputs.files), val = paths_of(inputs.named_val);
    if (val.empty()) {
        DividedTexts divided = divide_texts(train, options.val_fraction);
        CHECK(!divided.train.empty() || !divided.val.empty(), "{}: there is no text to tokenize", train[0]);
        return divided;
    }
    CHECK(options.val_fraction == 0,
          "--val-fraction {}: {} is the validation data, by its name; expected no --val-fraction, or files "
          "instead of the folder",
          options.val_fraction, val[0]);
    return {divide_texts(train, 0).train, divide_texts(val, 0).train};
}

static void tokenize(const Options& options) {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
    const DividedTexts divided = texts_of(options);
    CHECK(!divided.train.empty(), "--val-fraction {}: is so large that nothing is left to train on",
          options.val_fraction);
    CHECK(options.val_fraction == 0 || !divided.val.empty(),
          "--val-fraction {}: is too small to hold out anything", options.val_fraction);
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

    train.append(divided.train);
    val.append(divided.val);
    CHECK(!train.series().shards().empty(), "{}: there is no text to tokenize", divided.train[0].path);
    TextFindings findings = train.findings();
    findings.add(val.findings());
    for (const std::string& note : findings.notes()) note_on_stderr("tokenize: " + note);
    for (SplitWriter* split : {&train, &val}) split->series().close();
    const std::string maker = write_shard_tokenizer(options.out, *tokenizer);
    try {
        train.series().commit();
        try {
            val.series().commit();
        } catch (...) {
            train.series().withdraw();
            throw;
        }
    } catch (...) {
        fs::remove(maker);
        throw;
    }
    line.erase();
    for (SplitWriter* split : {&train, &val}) {
        for (const TokenShardWriter& shard : split->series().shards())
            print_result(fmt::format("{}: {} tokens", shard.path(), shard.size()));
    }
}

static constexpr size_t batch_bytes = size_t{64} << 10;  // text that a thread takes at a time

using Tokens = std::vector<Token>;

// Documents, and a thread that makes tokens of them.
struct DocumentBatch {
    std::vector<Document> documents;
    std::future<std::vector<Tokens>> tokens{};
};

static std::vector<Tokens> tokens_of(Tokenizer& tokenizer, const std::vector<Document>& documents, bool bos) {
    std::vector<Tokens> all;
    for (const Document& document : documents) {
        Tokens& tokens = all.emplace_back(tokens_before_text(tokenizer, true, bos));
        const Tokens text = tokenizer.encode(document.text);
        tokens.insert(tokens.end(), text.begin(), text.end());
    }
    return all;
}

// Starts a thread that no signal reaches: signals must interrupt the reading thread's wait for input.
static std::future<std::vector<Tokens>> start(Tokenizer& tokenizer, const std::vector<Document>& documents,
                                              bool bos) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    auto tokens = std::async(std::launch::async,
                             [&tokenizer, &documents, bos] { return tokens_of(tokenizer, documents, bos); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return tokens;
}

// Reads all documents into the shards, which depend neither on the number of threads nor on how often
// the work was interrupted. Each document becomes the end-of-text token (if the tokenizer has one) and then
// its own tokens; empty ones are skipped. Returns how often the documents contain "<|endoftext|>" as ordinary
// text (Tokenizer::unread_ends).
static size_t tokenize_stream(DocumentStream& input, RestartableShards& shards, const Options& options) {
    std::vector<std::unique_ptr<Tokenizer>> tokenizers;
    for (int i = 0; i < options.threads; i++) tokenizers.push_back(make_tokenizer(options.tokenizer));
    std::deque<DocumentBatch> running;  // in the order of the documents

    const auto next_documents = [&] {
        std::vector<Document> documents;
        for (size_t bytes = 0; bytes < batch_bytes;) {
            std::optional<Document> document = input.next();
            if (!document) break;
            if (!shards.needs(document->place) || document->text.empty()) continue;
            bytes += document->text.size();
            documents.push_back(std::move(*document));
        }
        return documents;
    };
    const auto write_oldest = [&] {
        const std::vector<Tokens> tokens = running.front().tokens.get();
        for (size_t i = 0; i < tokens.size(); i++)
            shards.append(running.front().documents[i].place, tokens[i]);
        running.pop_front();
    };
    for (size_t number = 0;; number++) {
        std::vector<Document> documents = next_documents();
        if (documents.empty()) break;
        // The batch that had this tokenizer before is the oldest.
        if (running.size() == tokenizers.size()) write_oldest();
        running.push_back({.documents = std::move(documents)});
        DocumentBatch& batch = running.back();
        batch.tokens = start(*tokenizers[number % tokenizers.size()], batch.documents, options.bos);
    }
    while (!running.empty()) write_oldest();
    size_t unread_ends = 0;
    for (const auto& each : tokenizers) unread_ends += each->unread_ends();
    return unread_ends;
}

static void tokenize_standard_input(const Options& options) {
    const OutputFolder folder(options.out);
    StatusLine line(stderr);
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
    tokens_before_text(*tokenizer, true, options.bos);  // an error before anything is read
    RestartableShards shards({.folder = options.out,
                              .prefix = options.prefix,
                              .split = options.split,
                              .tokenizer = std::string(tokenizer->name()) + (options.bos ? " --bos" : ""),
                              .field = options.field,
                              .place_field = options.place_field,
                              .shard_tokens = options.shard_tokens,
                              .vocabulary = tokenizer->vocab_size(),
                              .val_tokens = options.val_tokens},
                             [&](const std::string& path, size_t tokens) {
                                 line.erase();
                                 print_result(fmt::format("{}: {} tokens", path, tokens));
                             });
    if (shards.complete()) {
        print_result(options.out + ": all shards are finished already");
        return;
    }
    Progress progress(line, "tokenize", "documents read", 0);
    DocumentKeys keys{.text = options.field, .place = options.place_field, .skip_bad = options.skip_bad};
    // Shards of an earlier version end at documents whose field "place" was read if they had one.
    if (shards.takes_places_as_before() && options.field != "place")
        keys.place = "place", keys.place_optional = true;
    std::optional<DocumentStream> documents;
    documents.emplace(STDIN_FILENO, "standard input", keys, options.until_end, [&] {
        if (stop_requested())
            throw Error("interrupted; the same command continues after the finished shards");
        progress.at(documents->count());
    });
    const size_t unread = tokenize_stream(*documents, shards, options);
    for (const std::string& note : documents->notes()) note_on_stderr("tokenize: " + note);
    if (unread > 0) note_on_stderr("tokenize: " + note_of_unread_ends(unread));
    shards.finish();
}

// Passes all texts to the training: files, or documents on standard input.
static void read_texts(const Options& options, TokenizerTraining& training) {
    if (!options.stream) {
        const Note note = [](const std::string& line) { note_on_stderr("tokenize: " + line); };
        for (const std::string& path : paths_of(input_files(options.files, {.note = note}).files))
            training.append(TextPart{path});
        for (const std::string& line : training.findings().notes()) note(line);
        return;
    }
    DocumentStream documents(STDIN_FILENO, "standard input",
                             {.text = options.field, .skip_bad = options.skip_bad}, options.until_end, [] {
                                 if (stop_requested()) throw Error("interrupted; nothing was written");
                             });
    while (const std::optional<Document> document = documents.next()) training.append(document->text);
    for (const std::string& line : documents.notes()) note_on_stderr("tokenize: " + line);
}

static SplitPattern pattern_of(const std::string& word) {
    return word == "gpt4"       ? SplitPattern::gpt4
           : word == "llama3"   ? SplitPattern::llama3
           : word == "nanochat" ? SplitPattern::nanochat
           : word == "qwen"     ? SplitPattern::qwen
                                : SplitPattern::gpt2;
}

// Makes a tokenizer.json, and the tokenizer_config.json beside it.
static void train_tokenizer(const Options& options) {
    const fs::path path = options.out, config = fs::path(path).replace_filename("tokenizer_config.json");
    CHECK(path.filename() == "tokenizer.json",
          "--out {}: expected the path of a file tokenizer.json; tokenizer_config.json is written beside it",
          options.out);
    for (const fs::path& file : {path, config})
        CHECK(!is_there(file), "--out {}: {} exists already; choose another folder, or remove it",
              options.out, file.string());
    const OutputFolder folder(path.has_parent_path() ? path.parent_path().string() : ".");
    StatusLine line(stderr);
    std::optional<Progress> progress;
    progress.emplace(line, "read", "MB of text", 0);
    const auto go_on = [&](size_t done) {
        if (stop_requested()) throw Error("interrupted; nothing was written");
        progress->at(done);
    };
    TokenizerTraining training({.vocabulary = options.vocabulary,
                                .pattern = pattern_of(options.pattern),
                                .special = options.special,
                                .most_words = options.most_words,
                                .threads = options.threads,
                                .read = [&](size_t bytes) { go_on(bytes / 1'000'000); },
                                .made = [&](size_t tokens) { go_on(tokens); }});
    read_texts(options, training);
    progress.reset();
    progress.emplace(line, "train", "tokens", options.vocabulary);
    const TokenizerTraining::Result result = training.finish();
    progress.reset();
    if (result.dropped > 0)
        note_on_stderr(fmt::format(
            "tokenize: note: the texts have more than {} distinct words; {} times a rare word was "
            "dropped; --most-words takes more, at about 60 bytes each",
            options.most_words, result.dropped));
    write_atomically(config, result.config);
    try {
        write_atomically(path, result.tokenizer);
    } catch (...) {
        std::error_code ignored;
        fs::remove(config, ignored);
        throw;
    }
    print_result(fmt::format("{}: {} tokens from {:.1f} MB of text with {} distinct words", options.out,
                             result.vocabulary, static_cast<double>(result.bytes) / 1e6, result.words));
}

// UsageError for options that do not belong to the training of a tokenizer, or only to that.
static void check_training(const Options& options, const CLI::App& app) {
    const std::vector<std::string> of_training = {"--pattern", "--special", "--most-words"};
    const std::vector<std::string> of_shards = {"--tokenizer",  "--val-fraction", "--shard-tokens",
                                                "--bos",        "--prefix",       "--split",
                                                "--val-tokens", "--place-field"};
    for (const std::string& name : options.vocabulary > 0 ? of_shards : of_training)
        CHECK(app.get_option(name)->count() == 0, "{} {} --train", name,
              options.vocabulary > 0 ? "excludes" : "needs");
}

// UsageError for options that do not belong to the given source of texts: files, or standard input.
static void check_source(const Options& options, const CLI::App& app) {
    const std::vector<std::string> of_files = {"FILE", "--val-fraction"};
    const std::vector<std::string> of_stream = {"--prefix",      "--split",     "--val-tokens", "--field",
                                                "--place-field", "--until-end", "--skip-bad",   "--threads"};
    check_training(options, app);
    for (const std::string& name : options.stream ? of_files : of_stream) {
        if (name == "--threads" && options.vocabulary > 0) continue;
        CHECK(app.get_option(name)->count() == 0, "{} {} --stream", name,
              options.stream ? "excludes" : "needs");
    }
    CHECK(options.prefix.find('/') == std::string::npos &&
              options.prefix == replace_invalid_utf8(options.prefix),
          "--prefix {}: expected the beginning of a file's name, in UTF-8 and without /", options.prefix);
    CHECK(options.place_field.empty() || options.place_field != options.field,
          "--place-field {}: is the key of the text; expected the key of a field that differs between "
          "documents",
          options.place_field);
    CHECK(options.stream || !options.files.empty(),
          "FILE is required, or --stream for documents on standard input");
}

static void add_training(CLI::App& app, Options& options) {
    auto* train = app.add_option_group("a new tokenizer");
    add_parsed(
        *train, "--train", "N", "",
        [&](const std::string& text) {
            options.vocabulary = number_between("--train", text, size_t{256}, size_t{max_vocab_size});
        },
        "make a byte-level BPE of this many tokens from the texts, instead of shards; memory holds each "
        "distinct word once");
    add_word(*train, "--pattern", options.pattern, {"gpt2", "gpt4", "llama3", "nanochat", "qwen"},
             "cut the texts into words as the tokenizer of this model does");
    add_texts(*train, "--special", options.special, "TOKEN",
              "a special token; may be given several times; they are numbered last, and the first one begins "
              "and ends texts [<|endoftext|>]")
        ->allow_extra_args(false);
    add_number(*train, "--most-words", options.most_words, 1000, size_t{1} << 31,
               "distinct words in memory, at about 60 bytes each; beyond them the rarest are dropped");
}

int main(int argc,
         char** argv) {  // NOLINT(bugprone-exception-escape): before run_main, only wrong code here throws
    Options options;
    CLI::App app("Turns texts into token shards for training.", "tokenize");
    add_word_or_file(
        app, "--tokenizer", options.tokenizer, {"gpt2", "gpt2-eot", "byte"},
        "how texts become tokens; gpt2-eot: as gpt2, and <|endoftext|> in a text is the token that "
        "ends it; FILE is a tokenizer.json or its folder");
    add_number(app, "--val-fraction", options.val_fraction, 0, below_1,
               "fraction of the texts, taken from the end, to hold out for validation");
    add_text(app, "--out", options.out, "DIR",
             "folder to write the shards to: train_000000.bin, val_000000.bin and so on; with --train, the "
             "tokenizer.json to write")
        ->required();
    add_number(app, "--shard-tokens", options.shard_tokens, 1, size_t{4'000'000'000},
               "tokens in a shard; the last one may have fewer");
    app.add_option("FILE", options.files,
                   "texts or folders of texts, in order; an end-of-text token separates them if the "
                   "tokenizer has one");
    add_training(app, options);
    app.add_flag(
        "--bos", options.bos,
        "put the tokenizer's beginning token before each text; the end-of-text token still separates "
        "texts if it is another one");
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
    add_text(
        *stream, "--place-field", options.place_field, "KEY",
        "key of a string or whole number that differs between documents, by which a restart finds its place "
        "[the document's number in the input]");
    stream->add_flag("--until-end", options.until_end,
                     "accept the input as complete only if its last line is {\"end\": true}");
    stream->add_flag(
        "--skip-bad", options.skip_bad,
        "leave out lines that are no documents (not JSON, no text), and say how many there were");
    add_number(*stream, "--threads", options.threads, 1, 1024, "number of threads that tokenize documents");
    set_examples(app, {{"tokenize all texts of a folder; the last hundredth is for validation",
                        "tokenize --val-fraction 0.01 --out shards books"},
                       {"make a tokenizer of 32,768 tokens from texts, instead of using GPT-2's",
                        "tokenize --train 32768 --pattern gpt4 --out mine/tokenizer.json books"},
                       {"tokenize documents, one JSON object per line",
                        "zcat documents.jsonl.gz | tokenize --stream --out shards"}});
    return run_main("tokenize", [&] {
        if (!parse(app, argc, argv, {"--prefix"})) return;
        check_source(options, app);
        stop_on({SIGINT, SIGTERM}, 0);
        answer_stop("\ntokenize: stopping\n");
        if (options.vocabulary > 0) train_tokenizer(options);
        else if (options.stream) tokenize_standard_input(options);
        else tokenize(options);
    });
}
