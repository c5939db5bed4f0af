// data_files.h: from the patterns of the command line to token shards: finds files, and tokenizes texts once.
//   The tokens of TEXT.txt are kept in TEXT.txt.<tokenizer>.cache.bin beside it, or under $XDG_CACHE_HOME/flatgpt (~/.cache/flatgpt) where
//   its folder cannot be written; the cache carries the text's hash and is made again when the text has changed. Patterns pass over caches.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "token_shard.h"
#include "tokenizer.h"

struct DataSplits {
    std::vector<TokenShard> train;
    std::vector<TokenShard> val;  // empty: nothing to validate on
};

// The shards and texts (*.txt) that the patterns match, sorted by name. Without val_pattern (""), a lone text keeps its last tenth
// for validation. UsageError if a pattern matches nothing or a file cannot be read; Error if a cache cannot be written.
DataSplits open_data(const std::string& train_pattern, const std::string& val_pattern, Tokenizer& tokenizer);

// at, or up to three bytes before it: where the UTF-8 character that holds it starts, so that no character is cut in two.
size_t start_of_character(std::string_view text, size_t at);
