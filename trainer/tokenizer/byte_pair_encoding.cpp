#include "trainer/tokenizer/byte_pair_encoding.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

static constexpr size_t cache_slots = size_t{1} << 16;  // 4 MiB
static constexpr size_t nowhere = ~size_t{0};
static constexpr size_t short_word = 128;  // bytes; up to here, looking at all neighbours is fastest
static constexpr uint64_t golden = 0x9E3779B97F4A7C15;

static uint64_t pair_of(Token left, Token right) { return uint64_t{left} << 32 | right; }

BytePairEncoding::BytePairEncoding(const std::array<Token, 256>& byte_tokens,
                                   const std::vector<Merge>& merges)
    : byte_tokens_(byte_tokens), byte_ranks_(size_t{1} << 16), cache_(cache_slots) {
    const size_t slots = std::bit_ceil(std::max<size_t>(1024, 2 * merges.size()));
    slots_.resize(slots);
    shift_ = 64 - std::countr_zero(slots);
    for (const Merge& merge : merges) {
        auto& slot = const_cast<MergeSlot&>(slot_of(merge.left, merge.right));
        slot = {pair_of(merge.left, merge.right), static_cast<uint32_t>(merged_.size()), merge.merged};
        merged_.push_back(merge.merged);
    }
    for (size_t pair = 0; pair < byte_ranks_.size(); pair++)
        byte_ranks_[pair] = rank_of(byte_tokens_[pair >> 8], byte_tokens_[pair & 0xFF]);
}

std::vector<BytePairEncoding::Merge> BytePairEncoding::merges() const {
    std::vector<Merge> merges;
    for (const Token merged : merged_) merges.push_back({0, 0, merged});
    for (const MergeSlot& slot : slots_) {
        if (slot.rank == none) continue;
        merges[slot.rank].left = static_cast<Token>(slot.pair >> 32);
        merges[slot.rank].right = static_cast<Token>(slot.pair);
    }
    return merges;
}

std::vector<Token> BytePairEncoding::all_tokens() const {
    std::vector<Token> tokens(byte_tokens_.begin(), byte_tokens_.end());
    tokens.insert(tokens.end(), merged_.begin(), merged_.end());
    for (const auto& [word, token] : whole_words_) tokens.push_back(token);
    return tokens;
}

// The slot of the pair, or the free slot where it belongs.
const BytePairEncoding::MergeSlot& BytePairEncoding::slot_of(Token left, Token right) const {
    const uint64_t pair = pair_of(left, right);
    size_t slot = (pair * golden) >> shift_;
    while (slots_[slot].rank != none && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
    return slots_[slot];
}

template <class Number>
static uint64_t load(const char* at) {
    Number number;
    std::memcpy(&number, at, sizeof(number));
    return number;
}

// A word of up to 30 bytes as four numbers, which overlap in words of other lengths than 8, 16 and so on.
struct WordBits {
    uint64_t part[4] = {};

    explicit WordBits(std::string_view word) {
        const char* const begin = word.data();
        const size_t size = word.size();
        if (size >= 16) {
            part[0] = load<uint64_t>(begin);
            part[1] = load<uint64_t>(begin + 8);
            part[2] = load<uint64_t>(begin + size - 16);
            part[3] = load<uint64_t>(begin + size - 8);
        } else if (size >= 8) {
            part[0] = load<uint64_t>(begin);
            part[1] = load<uint64_t>(begin + size - 8);
        } else if (size >= 4) {
            part[0] = load<uint32_t>(begin) | load<uint32_t>(begin + size - 4) << 32;
        } else if (size > 0) {
            part[0] = load<uint8_t>(begin) | load<uint8_t>(begin + size / 2) << 8 |
                      load<uint8_t>(begin + size - 1) << 16;
        }
    }
    bool operator==(const WordBits& other) const {
        return ((part[0] ^ other.part[0]) | (part[1] ^ other.part[1]) | (part[2] ^ other.part[2]) |
                (part[3] ^ other.part[3])) == 0;
    }
    uint64_t hash(size_t size) const {
        uint64_t hash = (part[0] ^ size) * golden;
        if (size >= 8) hash = (std::rotl(hash, 29) ^ part[1]) * golden;
        if (size >= 16) hash = (std::rotl((std::rotl(hash, 29) ^ part[2]) * golden, 29) ^ part[3]) * golden;
        return hash ^ hash >> 32;
    }
};

void BytePairEncoding::encode(Output& output, std::string_view word) {
    Token* const tokens = output.room_for(std::max(word.size(), cached_tokens));
    if (word.size() > cached_bytes) {
        output.size_ += merge(tokens, word);
        return;
    }
    const WordBits bits(word);
    CachedWord& cached = cache_[bits.hash(word.size()) >> 8 & (cache_slots - 1)];
    if (cached.bytes == word.size() && WordBits({cached.word, word.size()}) == bits) {
        std::memcpy(tokens, cached.token, sizeof(cached.token));
        output.size_ += cached.tokens;
        return;
    }
    const size_t count = merge(tokens, word);
    output.size_ += count;
    if (count > cached_tokens) return;
    cached.bytes = static_cast<uint8_t>(word.size());
    cached.tokens = static_cast<uint8_t>(count);
    std::copy(word.begin(), word.end(), cached.word);
    std::copy_n(tokens, count, cached.token);
}

// Writes the tokens of a word, at most one for each byte, and returns their number.
size_t BytePairEncoding::merge(Token* tokens, std::string_view word) {
    if (!whole_words_.empty()) {
        if (const auto found = whole_words_.find(std::string(word)); found != whole_words_.end()) {
            tokens[0] = found->second;
            return 1;
        }
    }
    return word.size() <= short_word ? merge_short(tokens, word) : merge_long(tokens, word);
}

size_t BytePairEncoding::merge_short(Token* tokens, std::string_view word) const {
    uint32_t ranks[short_word];  // of the merge with the right neighbour
    size_t count = word.size();
    if (count == 0) return 0;
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(word[i]); };
    for (size_t i = 0; i < count; i++) tokens[i] = byte_tokens_[byte(i)];
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = byte_ranks_[byte(i) * size_t{256} + byte(i + 1)];
    while (count > 1) {
        uint32_t least = ranks[0];
        for (size_t i = 1; i + 1 < count; i++) least = std::min(least, ranks[i]);
        if (least == none) break;
        size_t at = 0;
        while (ranks[at] != least) at++;
        tokens[at] = merged_[least];
        std::copy(tokens + at + 2, tokens + count, tokens + at + 1);
        std::copy(ranks + at + 1, ranks + count - 1, ranks + at);
        count--;
        if (at + 1 < count) ranks[at] = rank_of(tokens[at], tokens[at + 1]);
        if (at > 0) ranks[at - 1] = rank_of(tokens[at - 1], tokens[at]);
    }
    return count;
}

// The candidate merges are in a heap, so that a word of a million letters takes a second instead of a day.
size_t BytePairEncoding::merge_long(Token* tokens, std::string_view word) {
    symbols_.resize(word.size());
    for (size_t i = 0; i < word.size(); i++) {
        symbols_[i] = {i == 0 ? nowhere : i - 1, i + 1 == word.size() ? nowhere : i + 1,
                       byte_tokens_[static_cast<unsigned char>(word[i])], none};
    }
    candidates_.clear();
    for (size_t i = 0; i < word.size(); i++) offer(i);

    while (!candidates_.empty()) {
        std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
        const auto [rank, position] = candidates_.back();
        candidates_.pop_back();
        Symbol& left = symbols_[position];
        if (left.rank_with_next != rank) continue;  // a neighbour has merged meanwhile
        Symbol& right = symbols_[left.next];
        left.token = merged_[rank];
        left.next = right.next;
        right.rank_with_next = none;
        if (right.next != nowhere) symbols_[right.next].previous = position;
        offer(position);
        if (left.previous != nowhere) offer(left.previous);
    }
    size_t count = 0;
    for (size_t i = 0; i != nowhere; i = symbols_[i].next) tokens[count++] = symbols_[i].token;
    return count;
}

// Adds the merge of the symbol at position with its right neighbour to the candidates, if it exists.
void BytePairEncoding::offer(size_t position) {
    Symbol& symbol = symbols_[position];
    symbol.rank_with_next =
        symbol.next == nowhere ? none : rank_of(symbol.token, symbols_[symbol.next].token);
    if (symbol.rank_with_next == none) return;
    candidates_.push_back({symbol.rank_with_next, position});
    std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}
