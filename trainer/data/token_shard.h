// token_shard.h: token files in llm.c's two formats: a header of 256 int32, then the tokens, little-endian.
//   16 bits a token   header [0] = 20240520, [1] = 1
//   32 bits a token   header [0] = 20240801, [1] = 7; for vocabularies of more than 65,536
//   Both: [2] = number of tokens; the file must have exactly 1024 + 2 or 4 * tokens bytes.
//   The number is read as uint32, so counts from 2^31 on, which other programs read as negative, work
//   here. [4] and [5] hold the low and high half of source_hash; other programs leave them 0.
//   NAME.mask beside NAME.bin has one byte for each token: 1 if the token counts as a target, 0 if it is
//   only read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "system/atomic_file.h"
#include "system/file_reader.h"
#include "trainer/tokenizer/token.h"

// Bytes of a token in the shards of a vocabulary.
constexpr size_t token_bytes_for(int vocabulary) { return vocabulary > max_vocab_of_16_bits ? 4 : 2; }

// True if a file's first bytes hold one of the magic numbers.
bool begins_as_shard(std::string_view first_bytes);

// A shard of any size in a file, which stays open; or tokens in memory.
class TokenShard {
public:
    // UsageError, naming the file, if it cannot be read or is not a token shard, or if its mask has
    // another size.
    explicit TokenShard(const std::string& path) : TokenShard(path, path) {}
    // Messages call the shard `name`, such as the text that a cache was made from.
    TokenShard(const std::string& path, const std::string& name);
    // Tokens in memory, without a file.
    TokenShard(std::vector<Token> tokens, const std::string& name, int vocabulary = max_vocab_of_16_bits)
        : name_(name),
          memory_(std::move(tokens)),
          size_(memory_.size()),
          token_bytes_(token_bytes_for(vocabulary)) {}

    const std::string& name() const { return name_; }
    // Reads tokens.size() tokens from position `begin` on. ReadError if the file cannot be read.
    void read(std::span<Token> tokens, size_t begin) const;
    std::vector<Token> tokens() const;  // all of them
    bool has_mask() const { return mask_.has_value(); }
    // Reads from the mask likewise; has_mask() must be true. UsageError for a byte other than 0 and 1.
    void read_mask(std::span<uint8_t> mask, size_t begin) const;
    size_t size() const { return size_; }
    // 2 or 4: of a token in the file, or in the file that these tokens in memory would make.
    size_t token_bytes() const { return token_bytes_; }
    uint64_t source_hash() const { return source_hash_; }
    // Hash of all texts that the tokens were made from, by which a run knows its data again; 0: none.
    uint64_t content_hash() const { return content_hash_; }
    void set_content_hash(uint64_t hash) { content_hash_ = hash; }

private:
    std::optional<FileReader> file_, mask_;
    std::string name_;
    std::vector<Token> memory_;
    size_t size_ = 0;  // in tokens
    size_t token_bytes_ = 2;
    uint64_t source_hash_ = 0, content_hash_ = 0;
};

// Writes a shard, which appears under its name complete or not at all. Errors as AtomicFile's.
class TokenShardWriter {
public:
    // source_hash: hash of the source of the tokens, by which a cache's validity is checked.
    // vocabulary: tokens are below it; it decides between 16 and 32 bits.
    explicit TokenShardWriter(const std::string& path, uint64_t source_hash = 0,
                              int vocabulary = max_vocab_of_16_bits);

    void append(std::span<const Token> tokens);
    size_t size() const { return size_; }
    const std::string& path() const { return file_.path(); }
    const std::string& temporary_path() const { return file_.temporary_path(); }
    void close();   // completes the file on the disk, under its temporary name
    void commit();  // close(), then gives it its final name

private:
    AtomicFile file_;
    uint64_t source_hash_;
    size_t token_bytes_;
    size_t size_ = 0;
    bool closed_ = false;
};

// Writes a stream of tokens as FOLDER/PREFIX_000000.bin, FOLDER/PREFIX_000001.bin and so on. No shard has
// its final name before commit(), and none keeps it if commit() fails.
class TokenShardSeries {
public:
    // source_hash, vocabulary: for every shard, as TokenShardWriter takes them.
    TokenShardSeries(const std::string& folder, const std::string& prefix,
                     size_t tokens_per_shard = 100'000'000, uint64_t source_hash = 0,
                     int vocabulary = max_vocab_of_16_bits);
    static std::string path_of(const std::string& folder, const std::string& prefix, size_t index);

    void append(std::span<const Token> tokens);
    const std::vector<TokenShardWriter>& shards() const { return shards_; }
    void close();
    void commit();
    // Removes the shards that already have their final names.
    void withdraw();

private:
    std::string folder_, prefix_;
    size_t tokens_per_shard_;
    uint64_t source_hash_;
    int vocabulary_;
    std::vector<TokenShardWriter> shards_;
};
