// token_cache.h: the tokens of a split's texts, from a cache or made now.
#pragma once
#include <string>
#include <vector>

#include "system/error.h"
#include "trainer/data/data_files.h"
#include "trainer/data/joined_texts.h"
#include "trainer/data/token_shard.h"

struct TextStream {
    std::vector<TextPart> parts;
    std::string name;    // in messages
    std::string part{};  // "train" or "val" of texts that are divided: distinguishes their caches
};

// The tokenizer and options for all texts of a call. Only the first cache that cannot be written is
// reported.
struct TextReader {
    Tokenizer& tokenizer;
    const DataOptions& options;
    bool said = false;
    TextFindings findings{};  // of all streams

    void say_findings() const;
    void say_uncached(const std::string& texts, const Error& why);
    bool is_stopped() const { return options.stop && options.stop(); }
};

// The tokens of the texts as shards, at least one, which may be empty. UsageError for a text that cannot be
// read.
std::vector<TokenShard> tokens_of(const TextStream& texts, TextReader& reader);
