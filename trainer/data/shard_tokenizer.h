// shard_tokenizer.h: which tokenizer made a token shard. Its header does not say so; a file beside it does:
//   tokenizer_of_shards.json, {"tokenizer": its name}, or the list of shards that tokenize --stream keeps.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "system/note.h"
#include "trainer/data/token_shard.h"
#include "trainer/tokenizer/tokenizer.h"

// The file for the shards of a folder, all of which `tokenizer` made; returns its path.
std::string write_shard_tokenizer(const std::string& folder, const Tokenizer& tokenizer);

// By the token, the bytes of text that it stands for, 0 for special tokens. Empty if they are not known: the
// tokenizer is "none", or another one made a shard or a file beside it is damaged, which is said.
std::vector<int> text_bytes_of_tokens(const Tokenizer& tokenizer, std::span<const TokenShard> shards,
                                      const Note& say);
