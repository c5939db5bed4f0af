#include "trainer/data/token_shard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "system/error.h"
#include "system/file_access.h"

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and so is every machine that this is built for");

static constexpr uint32_t shard_magic = 20240520, wide_shard_magic = 20240801;
static constexpr uint32_t shard_version = 1;
using Header = std::array<uint32_t, 256>;

// The name of a shard's mask; "" unless `shard` ends in .bin.
static std::string mask_of(const std::string& shard) {
    return shard.ends_with(".bin") ? shard.substr(0, shard.size() - std::strlen(".bin")) + ".mask" : "";
}

bool begins_as_shard(std::string_view first_bytes) {
    uint32_t magic = 0;
    if (first_bytes.size() < sizeof(magic)) return false;
    std::memcpy(&magic, first_bytes.data(), sizeof(magic));
    return magic == shard_magic;
}

TokenShard::TokenShard(const std::string& path, const std::string& name)
    : file_(std::in_place, path), name_(name) {
    const size_t bytes = file_->size();
    CHECK(bytes >= sizeof(Header), "{}: {} bytes are too short for a token shard, whose header alone has {}",
          path, bytes, sizeof(Header));
    Header header;
    file_->read(header.data(), 0, sizeof(header));
    CHECK(header[0] != wide_shard_magic,
          "{}: is llm.c's shard of 32-bit tokens; expected one of 16-bit tokens, which tokenize makes", path);
    CHECK(
        header[0] == shard_magic,
        "{0}: is not a token shard: magic number {1}, expected {2}; make shards with tokenize; the name of a "
        "text must not end in .bin; 16-bit tokens without a header, such as nanoGPT's train.bin, become a "
        "shard so: python3 -c \"import numpy as n; t = n.fromfile('{0}', 'u2'); h = n.zeros(256, 'u4'); "
        "h[:3] "
        "= {2}, {3}, len(t); open('shard.bin', 'wb').write(h.tobytes() + t.tobytes())\"",
        path, header[0], shard_magic, shard_version);
    CHECK(header[1] == shard_version, "{}: token shard of version {}, expected {}", path, header[1],
          shard_version);
    size_ = header[2];
    const size_t expected = sizeof(Header) + size_ * sizeof(uint16_t);
    CHECK(bytes == expected, "{}: {} bytes, expected {} for the {} tokens of its header; the file is damaged",
          path, bytes, expected, size_);
    source_hash_ = header[4] | uint64_t{header[5]} << 32;
    const std::string mask = mask_of(path);
    if (mask.empty() || !is_there(mask)) return;
    mask_.emplace(mask);
    CHECK(mask_->size() == size_, "{}: {} bytes, expected one for each of the {} tokens of {}", mask,
          mask_->size(), size_, path);
}

void TokenShard::read(std::span<uint16_t> tokens, size_t begin) const {
    if (file_) file_->read(tokens.data(), sizeof(Header) + begin * sizeof(uint16_t), tokens.size_bytes());
    else std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(begin), tokens.size(), tokens.begin());
}

std::vector<uint16_t> TokenShard::tokens() const {
    std::vector<uint16_t> tokens(size_);
    read(tokens, 0);
    return tokens;
}

void TokenShard::read_mask(std::span<uint8_t> mask, size_t begin) const {
    mask_->read(mask.data(), begin, mask.size());
    const auto wrong = std::find_if(mask.begin(), mask.end(), [](uint8_t value) { return value > 1; });
    CHECK(wrong == mask.end(),
          "{}: byte {} is {}; expected 1 for a token that counts as a target, 0 for one that does not",
          mask_->path(), begin + static_cast<size_t>(wrong - mask.begin()), *wrong);
}

TokenShardWriter::TokenShardWriter(const std::string& path, uint64_t source_hash)
    : file_(path), source_hash_(source_hash) {
    const Header empty = {};
    file_.write(empty.data(), sizeof(empty));
}

void TokenShardWriter::append(std::span<const uint16_t> tokens) {
    constexpr size_t most = std::numeric_limits<uint32_t>::max();
    CHECK(tokens.size() <= most - size_,
          "{}: a token shard holds at most {} tokens; make several with tokenize", path(), most);
    file_.write(tokens.data(), tokens.size_bytes());
    size_ += tokens.size();
}

void TokenShardWriter::close() {
    if (closed_) return;
    Header header = {};
    header[0] = shard_magic;
    header[1] = shard_version;
    header[2] = static_cast<uint32_t>(size_);
    header[4] = static_cast<uint32_t>(source_hash_);
    header[5] = static_cast<uint32_t>(source_hash_ >> 32);
    file_.write_at(0, header.data(), sizeof(header));
    file_.close();
    closed_ = true;
}

void TokenShardWriter::commit() {
    close();
    file_.commit();
}

TokenShardSeries::TokenShardSeries(const std::string& folder, const std::string& prefix,
                                   size_t tokens_per_shard, uint64_t source_hash)
    : folder_(folder), prefix_(prefix), tokens_per_shard_(tokens_per_shard), source_hash_(source_hash) {}

std::string TokenShardSeries::path_of(const std::string& folder, const std::string& prefix, size_t index) {
    return fmt::format("{}/{}_{:06}.bin", folder, prefix, index);
}

void TokenShardSeries::append(std::span<const uint16_t> tokens) {
    while (!tokens.empty()) {
        if (shards_.empty() || shards_.back().size() == tokens_per_shard_) {
            close();
            shards_.emplace_back(path_of(folder_, prefix_, shards_.size()), source_hash_);
        }
        TokenShardWriter& shard = shards_.back();
        const size_t part = std::min(tokens.size(), tokens_per_shard_ - shard.size());
        shard.append(tokens.first(part));
        tokens = tokens.subspan(part);
    }
}

void TokenShardSeries::close() {
    if (!shards_.empty()) shards_.back().close();
}

void TokenShardSeries::commit() {
    try {
        for (TokenShardWriter& shard : shards_) shard.commit();
    } catch (...) {
        withdraw();
        throw;
    }
}

void TokenShardSeries::withdraw() {
    for (const TokenShardWriter& shard : shards_) {
        if (shard.temporary_path().empty()) unlink(shard.path().c_str());
    }
}
