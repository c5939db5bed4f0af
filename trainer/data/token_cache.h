// token_cache.h: the tokens of a split's texts, from a cache or made now.
#pragma once
#include <cstdint>
#include <optional>
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

// A cache that is made now has a temporary name until open(), so that nothing is left of texts that turn
// out to be too short.
class StreamTokens {
public:
    StreamTokens(const TextStream& texts, TextReader& reader);

    const std::string& name() const { return name_; }
    size_t longest() const;  // tokens in the longest of its shards
    std::vector<TokenShard> open(TextReader& reader) &&;

private:
    bool find_or_make_cache(const TextStream& texts, uint64_t hash, TextReader& reader);
    void write_cache(const std::string& folder, const std::string& prefix, uint64_t hash,
                     const TextStream& texts, const TextReader& reader);
    void keep_in_memory(const TextStream& texts, const TextReader& reader);
    void commit(TextReader& reader);

    std::string name_;
    std::vector<TokenShard> shards_;
    std::optional<TokenShardSeries> series_;  // written, but without its final names
    std::string list_path_;
    TextFindings findings_;
    uint64_t content_hash_ = 0;
};
