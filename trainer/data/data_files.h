// data_files.h: token shards from command-line patterns (input_files.h). Texts are tokenized once.
//   The tokens of TEXT are kept in TEXT.<tokenizer>.cache.bin beside it, or under $XDG_CACHE_HOME/flatgpt
//   (~/.cache/flatgpt) if that cannot be written. The cache stores the text's hash and is made again when
//   the text changes. If neither place can be written (a full disk, a name that is too long), the tokens
//   stay in memory.
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
    std::vector<TokenShard> val;  // empty: there is no validation data
};

struct DataOptions {
    // Some file of the split must have this many tokens and one more; 0: no requirement.
    int train_T = 0, val_T = 0;
    // called with a line about each text that takes seconds or cannot be cached
    std::function<void(const std::string&)> note{};
    // Delay before the first progress line; five times as long between later ones.
    double note_seconds = 2;
    // polled while a text is tokenized; when it returns true, an Error ends the tokenizing
    std::function<bool()> stop{};
};

// The shards and texts that the patterns match, sorted by name. Without val_pattern (""), and if all
// inputs are texts, the last tenth of all texts together is held out for validation. UsageError as from
// input_files, and if a file cannot be read or the texts are too short; no caches are left then.
DataSplits open_data(const std::string& train_pattern, const std::string& val_pattern, Tokenizer& tokenizer,
                     const DataOptions& options = {});

// The error for a split in which no file has T+1 tokens; name and tokens are those of its first file.
UsageError too_few_tokens(const std::string& name, size_t tokens, int T);

// All shards and texts that a pattern matches, as one split, checked against options.val_T. Errors as for
// open_data.
std::vector<TokenShard> open_split(const std::string& pattern, Tokenizer& tokenizer,
                                   const DataOptions& options = {});

// `at`, moved back by up to three bytes to the start of its UTF-8 character, so that no character is cut
// in two.
size_t start_of_character(std::string_view text, size_t at);
