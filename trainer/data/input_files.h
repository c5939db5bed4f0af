// input_files.h: the files that a pattern of the command line stands for, each a text or a token shard.
#pragma once
#include <functional>
#include <string>
#include <vector>

struct InputFile {
    std::string path;
    bool text;  // or a token shard
};

// The files that a pattern matches, sorted by name; {a,b} and ~ are understood. A folder stands for the texts
// and shards in it and in the folders below, without hidden ones; note is told, in a line, of what else lies
// there. Caches of tokens and files that are being written are passed over. What ends in .txt is a text, and
// what ends in .bin a shard; other names are known by their first bytes.
// UsageError if nothing matches, a file is neither of the two, or a text is UTF-16.
std::vector<InputFile> input_files(const std::string& pattern,
                                   const std::function<void(const std::string&)>& note = {});

// One pattern for several: a value of the command line that is a file or folder, or a pattern itself, each.
// UsageError, naming the option, for one that is neither.
std::string one_pattern(const std::string& option, const std::vector<std::string>& values);

// The end of the name that a cache of tokens has.
inline constexpr char cache_suffix[] = ".cache.bin";
