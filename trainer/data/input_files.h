// input_files.h: the files that a command-line pattern names, each a text or a token shard.
#pragma once
#include <functional>
#include <string>
#include <vector>

struct InputFile {
    std::string path;
    bool text;  // false: a token shard
};

// The files that a pattern matches, sorted by name. A pattern may contain {a,b} and ~. A folder stands
// for the texts and shards in it and in its subfolders, hidden ones excepted; one call of note reports
// other files in it. Caches of tokens and temporary files are skipped. Names ending in .txt are texts,
// and in .bin shards; the first bytes decide for other names. UsageError if nothing matches, a file is
// neither text nor shard, or a text is UTF-16.
std::vector<InputFile> input_files(const std::string& pattern,
                                   const std::function<void(const std::string&)>& note = {});

// Joins several command-line values into one pattern; each is a file, a folder or a pattern. UsageError,
// naming the option, for a value that is none of these.
std::string one_pattern(const std::string& option, const std::vector<std::string>& values);

// The suffix of the name of a cache of tokens.
inline constexpr char cache_suffix[] = ".cache.bin";
