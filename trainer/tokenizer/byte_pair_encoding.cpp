#include "trainer/tokenizer/byte_pair_encoding.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "system/error.h"

static constexpr size_t merge_slots = size_t{1} << 17;  // 50,000 merges fill 38 %, 65,535 half
static constexpr size_t cache_slots = size_t{1} << 16;  // 4 MiB
static constexpr size_t nowhere = ~size_t{0};
static constexpr int position_bits = 48;

static uint32_t pair_of(uint16_t left, uint16_t right) { return uint32_t{left} << 16 | right; }

BytePairEncoding::BytePairEncoding(const std::array<uint16_t, 256>& byte_tokens,
                                   const std::vector<Merge>& merges)
    : byte_tokens_(byte_tokens), ranks_(merge_slots), cache_(cache_slots) {
    CHECK(merges.size() <= max_merges, "{} merges are more than {}", merges.size(), max_merges);
    for (const Merge& merge : merges) {
        const uint32_t pair = pair_of(merge.left, merge.right);
        ranks_[slot_of(pair)] = {pair, static_cast<uint16_t>(merged_.size())};
        merged_.push_back(merge.merged);
    }
}

std::vector<BytePairEncoding::Merge> BytePairEncoding::merges() const {
    std::vector<Merge> merges;
    for (const uint16_t merged : merged_) merges.push_back({0, 0, merged});
    for (const auto& [pair, rank] : ranks_) {
        if (rank == none) continue;
        merges[rank].left = static_cast<uint16_t>(pair >> 16);
        merges[rank].right = static_cast<uint16_t>(pair & 0xFFFF);
    }
    return merges;
}

std::vector<uint16_t> BytePairEncoding::all_tokens() const {
    std::vector<uint16_t> tokens(byte_tokens_.begin(), byte_tokens_.end());
    tokens.insert(tokens.end(), merged_.begin(), merged_.end());
    return tokens;
}

void BytePairEncoding::encode(std::vector<uint16_t>& tokens, std::string_view word) {
    if (word.size() > cached_bytes) return merge_word(tokens, word);
    CachedWord& cached = cache_[XXH3_64bits(word.data(), word.size()) % cache_slots];
    if (cached.bytes == word.size() && std::memcmp(cached.word, word.data(), word.size()) == 0) {
        tokens.insert(tokens.end(), cached.token, cached.token + cached.tokens);
        return;
    }
    const size_t first = tokens.size();
    merge_word(tokens, word);
    const size_t count = tokens.size() - first;
    if (count > std::size(cached.token)) return;
    cached.bytes = static_cast<uint8_t>(word.size());
    cached.tokens = static_cast<uint8_t>(count);
    std::copy(word.begin(), word.end(), cached.word);
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first), count, cached.token);
}

// Returns the slot of the pair, or the free slot where it belongs.
size_t BytePairEncoding::slot_of(uint32_t pair) const {
    size_t slot = home_slot(pair);
    while (ranks_[slot].rank != none && ranks_[slot].pair != pair) slot = (slot + 1) % merge_slots;
    return slot;
}

// The candidate merges are in a heap, so that a word of a million letters takes a second instead of a day.
void BytePairEncoding::merge_word(std::vector<uint16_t>& tokens, std::string_view word) {
    symbols_.resize(word.size());
    for (size_t i = 0; i < word.size(); i++) {
        symbols_[i] = {i == 0 ? nowhere : i - 1, i + 1 == word.size() ? nowhere : i + 1,
                       byte_tokens_[static_cast<unsigned char>(word[i])], none};
    }
    candidates_.clear();
    for (size_t i = 0; i < word.size(); i++) offer(i);

    while (!candidates_.empty()) {
        std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
        const uint64_t candidate = candidates_.back();
        candidates_.pop_back();
        const size_t position = candidate & ((uint64_t{1} << position_bits) - 1);
        Symbol& left = symbols_[position];
        if (left.rank_with_next != candidate >> position_bits) continue;  // a neighbour has merged meanwhile
        Symbol& right = symbols_[left.next];
        left.token = merged_[left.rank_with_next];
        left.next = right.next;
        right.rank_with_next = none;
        if (right.next != nowhere) symbols_[right.next].previous = position;
        offer(position);
        if (left.previous != nowhere) offer(left.previous);
    }
    for (size_t i = 0; i != nowhere && !word.empty(); i = symbols_[i].next)
        tokens.push_back(symbols_[i].token);
}

// Adds the merge of the symbol at position with its right neighbour to the candidates, if it exists.
void BytePairEncoding::offer(size_t position) {
    Symbol& symbol = symbols_[position];
    symbol.rank_with_next = symbol.next == nowhere
                                ? none
                                : ranks_[slot_of(pair_of(symbol.token, symbols_[symbol.next].token))].rank;
    if (symbol.rank_with_next == none) return;
    candidates_.push_back(uint64_t{symbol.rank_with_next} << position_bits | position);
    std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}
