// token_shard.h: token files in llm.c's format: 256 int32 of header, then the tokens as uint16,
// little-endian.
//   header [0] = 20240520, [1] = 1, [2] = number of tokens; the file's size must be exactly 1024 + 2 *
//   tokens.
//   The number is read as uint32: counts from 2^31 on, which other programs would see as negative, are right
//   here.
//   [4] and [5], zero elsewhere, hold the low and high half of source_hash.
// NAME.mask beside NAME.bin has a byte for each token: 1 if the token counts as a target, 0 if it is only
// read.
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
#include "system/mapped_file.h"

// The mask's name; "" for the name of no shard.
std::string mask_of(const std::string& shard);

// True for a file's first bytes if they hold the magic number.
bool begins_as_shard(std::string_view first_bytes);

// A shard of any size, mapped read-only, or tokens in memory.
class TokenShard {
public:
    // UsageError, naming the file, if it cannot be read or is not a token shard, or if its mask has another
    // size.
    explicit TokenShard(const std::string& path) : TokenShard(path, path) {}
    // Messages call the shard `name`: the text that a cached shard was made from.
    TokenShard(const std::string& path, const std::string& name);
    // Tokens that are in no file.
    TokenShard(std::vector<uint16_t> tokens, const std::string& name)
        : name_(name), memory_(std::move(tokens)), tokens_(memory_) {}

    const std::string& name() const { return name_; }
    std::span<const uint16_t> tokens() const { return tokens_; }
    // Copies the tokens from the one at `begin` on. ReadError if they cannot be read (mapped_file.h).
    void read(std::span<uint16_t> tokens, size_t begin) const;
    bool has_mask() const { return mask_.has_value(); }
    // The same of its mask, which it must have. UsageError for another number than 0 and 1.
    void read_mask(std::span<uint8_t> mask, size_t begin) const;
    size_t size() const { return tokens_.size(); }
    uint64_t source_hash() const { return source_hash_; }

private:
    std::optional<MappedFile> file_, mask_;
    std::string name_;
    std::vector<uint16_t> memory_;
    std::span<const uint16_t> tokens_;
    uint64_t source_hash_ = 0;
};

// Writes a shard that appears under its name when it is complete, or not at all. Errors as AtomicFile's.
class TokenShardWriter {
public:
    // source_hash: of what the tokens were made from, for a cache to know whether it is still valid.
    explicit TokenShardWriter(const std::string& path, uint64_t source_hash = 0);

    void append(std::span<const uint16_t> tokens);
    size_t size() const { return size_; }
    const std::string& path() const { return file_.path(); }
    const std::string& temporary_path() const { return file_.temporary_path(); }
    void close();   // complete on the disk, under its temporary name
    void commit();  // close(), then its name

private:
    AtomicFile file_;
    uint64_t source_hash_;
    size_t size_ = 0;
    bool closed_ = false;
};

// Writes a stream of tokens as FOLDER/PREFIX_000000.bin, FOLDER/PREFIX_000001.bin and on. No shard has its
// name before commit(), and none keeps it if commit() fails.
class TokenShardSeries {
public:
    TokenShardSeries(const std::string& folder, const std::string& prefix,
                     size_t tokens_per_shard = 100'000'000);

    void append(std::span<const uint16_t> tokens);
    const std::vector<TokenShardWriter>& shards() const { return shards_; }
    void close();
    void commit();
    // Takes back the shards that have their names.
    void withdraw();

private:
    std::string folder_, prefix_;
    size_t tokens_per_shard_;
    std::vector<TokenShardWriter> shards_;
};
