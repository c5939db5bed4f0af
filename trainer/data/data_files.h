// data_files.h: from the patterns of the command line (input_files.h) to token shards: tokenizes texts once.
//   The tokens of TEXT are kept in TEXT.<tokenizer>.cache.bin beside it, or under $XDG_CACHE_HOME/flatgpt
//   (~/.cache/flatgpt) where that cannot be written; the cache carries the text's hash and is made again when
//   the text has changed. Where neither can be written (a full disk, a name that gets too long), the tokens
//   are kept in memory.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "system/error.h"
#include "trainer/data/token_shard.h"
#include "trainer/tokenizer/tokenizer.h"

struct DataSplits {
    std::vector<TokenShard> train;
    std::vector<TokenShard> val;  // empty: nothing to validate on
};

struct DataOptions {
    // A file of the split must have that many tokens and one more; 0: any will do.
    int train_T = 0, val_T = 0;
    // told, in lines, about a text that takes seconds, or has no cache
    std::function<void(const std::string&)> note{};
    // before the first line, and five times that before each one after it
    double note_seconds = 2;
    // asked while a text is tokenized; true ends that with an Error
    std::function<bool()> stop{};
};

// The shards and texts that the patterns match, sorted by name. Without val_pattern (""), texts keep their
// last tenth for validation, of all together, if there are no shards among them. UsageError as input_files',
// and if a file cannot be read or texts are too short, which leaves no caches of them.
DataSplits open_data(const std::string& train_pattern, const std::string& val_pattern, Tokenizer& tokenizer,
                     const DataOptions& options = {});

// A split without a window of T tokens and the next one: its first file, and that file's tokens.
UsageError too_few_tokens(const std::string& name, size_t tokens, int T);

// The shards and texts that a pattern matches, whole: one split, of which options.val_T is asked. Errors as
// open_data's.
std::vector<TokenShard> open_split(const std::string& pattern, Tokenizer& tokenizer,
                                   const DataOptions& options = {});

// at, or up to three bytes before it: where the UTF-8 character that holds it starts, so that no character is
// cut in two.
size_t start_of_character(std::string_view text, size_t at);
