// tokenize: texts to token shards.
//   tokenize --tokenizer gpt2|byte [--val-fraction 0] --out DIR FILE...
//   writes DIR/train_000000.bin, DIR/val_000000.bin and on, 100 million tokens a shard; all of them or none.
#include <csignal>
#include <filesystem>

#include "command_line.h"
#include "data_files.h"
#include "mapped_file.h"
#include "token_shard.h"
#include "tokenizer.h"

namespace fs = std::filesystem;

static constexpr size_t piece_bytes = size_t{4} << 20;  // of text, tokenized at a time

static volatile std::sig_atomic_t interrupted = 0;

struct Options {
    std::string tokenizer = "gpt2";
    double val_fraction = 0;
    std::string out;
    std::vector<std::string> files;
};

// A split of the texts: what goes to one series of shards.
class SplitWriter {
public:
    SplitWriter(const std::string& folder, const std::string& prefix, Tokenizer& tokenizer) : series_(folder, prefix), tokenizer_(tokenizer) {}

    // Appends a text, after end-of-text (where the tokenizer has one) if there was a text before.
    void append(std::string_view text) {
        if (text.empty()) return;
        if (const std::optional<int> end = tokenizer_.end_of_text(); end && !series_.shards().empty()) {
            const uint16_t token = static_cast<uint16_t>(*end);
            series_.append({&token, 1});
        }
        tokenizer_.encode_in_pieces(text, piece_bytes, [&](std::span<const uint16_t> tokens) {
            if (interrupted) throw Error("interrupted; nothing was written");
            series_.append(tokens);
        });
    }
    TokenShardSeries& series() { return series_; }

private:
    TokenShardSeries series_;
    Tokenizer& tokenizer_;
};

// Shards of an earlier call would be read together with the new ones.
static void refuse_used_folder(const std::string& folder) {
    if (!fs::exists(folder)) return;
    CHECK(fs::is_directory(folder), "--out {}: is not a folder", folder);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        const bool shard = (name.starts_with("train_") || name.starts_with("val_")) && name.ends_with(".bin");
        CHECK(!shard, "--out {}: already holds {}; choose another folder or remove its shards", folder, name);
    }
}

// Removes the folders that were made for the output, if there is no output.
class OutputFolder {
public:
    explicit OutputFolder(const std::string& path) {
        for (fs::path folder = fs::absolute(path).lexically_normal(); !folder.empty() && !fs::exists(folder); folder = folder.parent_path()) {
            if (folder.has_filename()) made_.push_back(folder);
        }
        std::error_code failed;
        fs::create_directories(path, failed);
        CHECK(!failed, "--out {}: the folder cannot be made: {}", path, failed.message());
    }
    ~OutputFolder() {
        std::error_code ignored;
        for (const fs::path& folder : made_) fs::remove(folder, ignored);  // only an empty folder goes
    }

private:
    std::vector<fs::path> made_;  // the innermost first
};

static void tokenize(const Options& options) {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
    std::vector<MappedFile> files;
    size_t total = 0;
    for (const std::string& path : options.files) total += files.emplace_back(path).bytes().size();
    CHECK(total > 0, "{}: there is no text to tokenize", options.files[0]);
    refuse_used_folder(options.out);
    const OutputFolder folder(options.out);
    SplitWriter train(options.out, "train", *tokenizer), val(options.out, "val", *tokenizer);

    // The last fraction of all bytes is for validation; the file in which it begins goes to both sides.
    const size_t val_bytes = total - static_cast<size_t>(static_cast<double>(total) * (1 - options.val_fraction));
    size_t rest = total;
    for (const MappedFile& file : files) {
        const std::string_view text = file.bytes();
        rest -= text.size();
        const size_t held_out = std::min(text.size(), val_bytes > rest ? val_bytes - rest : 0);
        const size_t cut = start_of_character(text, text.size() - held_out);
        train.append(text.substr(0, cut));
        val.append(text.substr(cut));
    }
    CHECK(!train.series().shards().empty(), "--val-fraction {}: leaves nothing to train on", options.val_fraction);
    CHECK(options.val_fraction == 0 || !val.series().shards().empty(), "--val-fraction {}: holds nothing out", options.val_fraction);
    for (SplitWriter* split : {&train, &val}) split->series().close();
    for (SplitWriter* split : {&train, &val}) {
        split->series().commit();
        for (const TokenShardWriter& shard : split->series().shards()) fmt::print("{}: {} tokens\n", shard.path(), shard.size());
    }
}

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Turns texts into token shards for training.", "tokenize");
    app.add_option("--tokenizer", options.tokenizer, "gpt2 or byte")->capture_default_str();
    app.add_option("--val-fraction", options.val_fraction, "the last part of the texts, held out for validation: 0 <= fraction < 1")
        ->capture_default_str();
    app.add_option("--out", options.out, "folder for the shards train_000000.bin, val_000000.bin and on")->required();
    app.add_option("FILE", options.files, "texts, in order; gpt2 puts its end-of-text token between them")->required();
    return run_main("tokenize", [&] {
        if (!parse(app, argc, argv)) return;
        CHECK(options.val_fraction >= 0 && options.val_fraction < 1, "--val-fraction {}: expected 0 <= fraction < 1", options.val_fraction);
        for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = 1; });
        tokenize(options);
    });
}
