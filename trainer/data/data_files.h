// data_files.h: token shards from command-line values (input_files.h). The texts of a split are one stream of
// tokens (joined_texts.h), so that short texts are trained on like long ones.
//   Large texts are tokenized once: the stream's tokens are kept as shards in $XDG_CACHE_HOME/flatgpt
//   (~/.cache/flatgpt), with a hash of the texts, and are made again when a text changes. The tokens of small
//   texts stay in memory, and so do those of all texts if the folder cannot be written (a full disk).
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "system/error.h"
#include "system/note.h"
#include "trainer/data/token_shard.h"
#include "trainer/tokenizer/tokenizer.h"

struct DataSplits {
    std::vector<TokenShard> train;
    std::vector<TokenShard> val;  // empty: there is no validation data
    size_t train_texts = 0;       // texts that are joined in `train`
};

struct DataOptions {
    // Some shard of the split, or its texts together, must have this many tokens and one more; 0: no
    // requirement.
    int train_T = 0, val_T = 0;
    bool sorted_once = false;  // InputRules::sorted_once
    Note note{};               // called with a line about anything that a user may not expect
    // Delay before the first progress line; five times as long between later ones.
    double note_seconds = 2;
    // polled while texts are read; when it returns true, an Error ends the reading
    std::function<bool()> stop{};
    size_t cache_bytes = size_t{8} << 20;         // smaller texts are tokenized at each start
    size_t shard_tokens = (size_t{1} << 31) - 1;  // tokens in a shard of a stream
};

// The shards and texts that the values name. Without val_data, validation data are the files named val in
// folders that also hold files named train, or, if all inputs are texts, the last tenth of them. UsageError
// as from input_files, and if a file cannot be read or the texts are too short.
DataSplits open_data(const std::vector<std::string>& train_data, const std::vector<std::string>& val_data,
                     Tokenizer& tokenizer, const DataOptions& options = {});

// The error for a split in which nothing has T+1 tokens; name and tokens are those of its first shard.
UsageError too_few_tokens(const std::string& name, size_t tokens, int T);

// All shards and texts that the values name, as one split, checked against options.val_T. Errors as for
// open_data.
std::vector<TokenShard> open_split(const std::vector<std::string>& values, Tokenizer& tokenizer,
                                   const DataOptions& options = {});

// Describes what open_data would train on, without reading it: "12 texts of 34567 bytes", "3 shards of 1000
// tokens".
std::string describe_data(const std::vector<std::string>& train_data,
                          const std::vector<std::string>& val_data, const Note& note);
