#include "trainer/data/token_shard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "system/error.h"
#include "system/file_access.h"
#include "system/printable.h"

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and so is every machine that this is built for");

// By the bytes of a token.
static constexpr struct {
    size_t token_bytes;
    uint32_t magic, version;
} forms[] = {{2, 20240520, 1}, {4, 20240801, 7}};
using Header = std::array<uint32_t, 256>;

// The name of a shard's mask; "" unless `shard` ends in .bin.
static std::string mask_of(const std::string& shard) {
    return shard.ends_with(".bin") ? shard.substr(0, shard.size() - std::strlen(".bin")) + ".mask" : "";
}

bool begins_as_shard(std::string_view first_bytes) {
    uint32_t magic = 0;
    if (first_bytes.size() < sizeof(magic)) return false;
    std::memcpy(&magic, first_bytes.data(), sizeof(magic));
    return magic == forms[0].magic || magic == forms[1].magic;
}

TokenShard::TokenShard(const std::string& path, const std::string& name)
    : file_(std::in_place, path), name_(name) {
    const size_t bytes = file_->size();
    CHECK(bytes >= sizeof(Header), "{}: {} bytes are too short for a token shard, whose header alone has {}",
          path, bytes, sizeof(Header));
    Header header;
    file_->read(header.data(), 0, sizeof(header));
    const auto& form = header[0] == forms[1].magic ? forms[1] : forms[0];
    CHECK(
        header[0] == form.magic,
        "{0}: is not a token shard: magic number {1}, expected {2}; make shards with tokenize; the name of a "
        "text must not end in .bin; 16-bit tokens without a header, such as nanoGPT's train.bin, become a "
        "shard so: python3 -c \"import sys, numpy as n; t = n.fromfile(sys.argv[1], 'u2'); "
        "h = n.zeros(256, 'u4'); h[:3] = {2}, {3}, len(t); "
        "open('shard.bin', 'wb').write(h.tobytes() + t.tobytes())\" {4}",
        path, header[0], form.magic, form.version, in_shell(path));
    CHECK(header[1] == form.version, "{}: token shard of version {}, expected {}", path, header[1],
          form.version);
    size_ = header[2];
    token_bytes_ = form.token_bytes;
    const size_t expected = sizeof(Header) + size_ * token_bytes_;
    CHECK(bytes == expected, "{}: {} bytes, expected {} for the {} tokens of its header; the file is damaged",
          path, bytes, expected, size_);
    source_hash_ = header[4] | uint64_t{header[5]} << 32;
    const std::string mask = mask_of(path);
    if (mask.empty() || !is_there(mask)) return;
    mask_.emplace(mask);
    CHECK(mask_->size() == size_, "{}: {} bytes, expected one for each of the {} tokens of {}", mask,
          mask_->size(), size_, path);
}

void TokenShard::read(std::span<Token> tokens, size_t begin) const {
    if (!file_) {
        std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(begin), tokens.size(), tokens.begin());
        return;
    }
    const size_t place = sizeof(Header) + begin * token_bytes_;
    if (token_bytes_ == sizeof(Token)) return file_->read(tokens.data(), place, tokens.size_bytes());
    std::array<uint16_t, 2048> part;
    for (size_t done = 0; done < tokens.size(); done += part.size()) {
        const size_t count = std::min(part.size(), tokens.size() - done);
        file_->read(part.data(), place + done * sizeof(uint16_t), count * sizeof(uint16_t));
        std::copy_n(part.begin(), count, tokens.begin() + static_cast<std::ptrdiff_t>(done));
    }
}

std::vector<Token> TokenShard::tokens() const {
    std::vector<Token> tokens(size_);
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

TokenShardWriter::TokenShardWriter(const std::string& path, uint64_t source_hash, int vocabulary)
    : file_(path), source_hash_(source_hash), token_bytes_(token_bytes_for(vocabulary)) {
    const Header empty = {};
    file_.write(empty.data(), sizeof(empty));
}

void TokenShardWriter::append(std::span<const Token> tokens) {
    constexpr size_t most = std::numeric_limits<uint32_t>::max();
    CHECK(tokens.size() <= most - size_,
          "{}: a token shard holds at most {} tokens; make several with tokenize", path(), most);
    size_ += tokens.size();
    if (token_bytes_ == sizeof(Token)) return file_.write(tokens.data(), tokens.size_bytes());
    std::array<uint16_t, 2048> part;
    while (!tokens.empty()) {
        const size_t count = std::min(part.size(), tokens.size());
        std::transform(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count), part.begin(),
                       [](Token token) { return static_cast<uint16_t>(token); });
        file_.write(part.data(), count * sizeof(uint16_t));
        tokens = tokens.subspan(count);
    }
}

void TokenShardWriter::close() {
    if (closed_) return;
    Header header = {};
    const auto& form = forms[token_bytes_ / 4];
    header[0] = form.magic;
    header[1] = form.version;
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
                                   size_t tokens_per_shard, uint64_t source_hash, int vocabulary)
    : folder_(folder),
      prefix_(prefix),
      tokens_per_shard_(tokens_per_shard),
      source_hash_(source_hash),
      vocabulary_(vocabulary) {}

std::string TokenShardSeries::path_of(const std::string& folder, const std::string& prefix, size_t index) {
    return fmt::format("{}/{}_{:06}.bin", folder, prefix, index);
}

void TokenShardSeries::append(std::span<const Token> tokens) {
    while (!tokens.empty()) {
        if (shards_.empty() || shards_.back().size() == tokens_per_shard_) {
            close();
            shards_.emplace_back(path_of(folder_, prefix_, shards_.size()), source_hash_, vocabulary_);
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
