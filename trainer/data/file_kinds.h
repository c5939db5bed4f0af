// file_kinds.h: what a file that is given as training data is, by its first bytes and its name.
#pragma once
#include <optional>
#include <string>

enum class FileKind { text, shard, other };

// The kind of a file. Names ending in .txt are texts, and in .bin shards or nothing; the first bytes decide
// for other names. UsageError, with the command that converts the file, for a text in UTF-16 or UTF-32, and
// AccessError or ReadError if the file cannot be read.
FileKind kind_of_file(const std::string& path);

// True for a file that is not data of its own: a text's cache, which holds the same tokens; a shard's mask
// (token_shard.h); a list of shards or tokenizer_of_shards.json (restartable_shards.h, shard_tokenizer.h);
// and a temporary file, which is still being written, or whose process was killed.
bool belongs_to_others(const std::string& path);

// Why a file of another kind cannot be trained on, and the command that makes a text of it.
std::string refusal_of_file(const std::string& path);

// A line about a text that is the container of other texts, such as JSON lines, whose syntax would be
// trained on as well; std::nullopt for other names.
std::optional<std::string> note_on_syntax(const std::string& path);

// True for the names of files that describe a folder: README, LICENSE and the like.
bool describes_folder(const std::string& path);

// The splits that a file's name and the innermost of its folders below `root` say: the name as one word
// between the signs _ . - and spaces (train_000000.bin, fineweb_val_000000.bin, wiki.valid.raw, dev.txt), a
// folder as a whole (root/val/a.txt). `rest`, by which the files of the splits of one data set are alike, has
// the name's other words, without numbers and the ending; it is empty for shards.
enum class NamedSplit { none, train, val, test };
struct SplitName {
    NamedSplit by_name = NamedSplit::none, by_folder = NamedSplit::none;
    std::string rest{};
};
SplitName split_name(const std::string& path, const std::string& root);
