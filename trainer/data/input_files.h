// input_files.h: the files that command-line values name, each a text or a token shard.
//   A value is a file, a folder, or a pattern that may contain * ? [] {a,b} and ~. The values' order is kept,
//   and a file that is given twice counts twice. A pattern's matches are sorted by name.
//   A folder stands for the shards in it and in its subfolders, or, if it has none, for the texts, sorted by
//   name; hidden files excepted. If files are named train and others val or test, it stands for those of the
//   split that is asked for. Notes say what of a folder is left out, and why.
//   Masks, the lists that tokenize --stream keeps, caches of tokens and temporary files are skipped.
#pragma once
#include <string>
#include <vector>

#include "system/note.h"

struct InputFile {
    std::string path;
    bool text;  // false: a token shard
};

struct Inputs {
    std::vector<InputFile> files;
    std::vector<InputFile> named_val;  // of folders of training data: the files that are named val
};

enum class Split { train, val };

struct InputRules {
    Split split = Split::train;
    // Folders and patterns leave these out; a file named by itself is taken all the same, with a note.
    std::vector<InputFile> validation{};
    // All files sorted by name, each once, and all files of a folder: the rules of the versions up to
    // November 2026, by whose runs go on.
    bool sorted_once = false;
    Note note{};
};

// UsageError for a value that matches nothing.
void check_matches(const std::vector<std::string>& values);

// UsageError if a value matches nothing, or a file is neither text nor shard, or a text is not UTF-8 but
// UTF-16 or UTF-32.
Inputs input_files(const std::vector<std::string>& values, const InputRules& rules = {});

// The suffix that versions up to November 2026 gave to caches of tokens, which lay beside the texts.
inline constexpr char cache_suffix[] = ".cache.bin";
