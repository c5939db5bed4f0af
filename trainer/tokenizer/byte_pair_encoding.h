// byte_pair_encoding.h: splits a word into tokens by merging, again and again, the leftmost of the neighbours
// whose merge comes first.
//   Sennrich, Haddow and Birch 2016, arXiv:1508.07909, on bytes as in GPT-2.
//   O(n log n) for a word of n bytes; words of up to 30 bytes are mostly found in a cache.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

class BytePairEncoding {
public:
    struct Merge {
        uint16_t left, right, merged;
    };
    static constexpr size_t max_merges = 65535;
    // byte_tokens[b] is the token of byte b; merges[rank] comes before merges[rank + 1]. Of two merges of one
    // pair the later one counts.
    BytePairEncoding(const std::array<uint16_t, 256>& byte_tokens, const std::vector<Merge>& merges);

    // Appends the tokens of a word.
    void encode(std::vector<uint16_t>& tokens, std::string_view word);

private:
    static constexpr uint16_t none = max_merges;  // is no merge's rank
    // Open addressing: a pair lies in the first free slot from its hash on.
    struct MergeSlot {
        uint32_t pair = 0;
        uint16_t rank = none;  // none: a free slot
    };
    // A word and its tokens in one cache line: text repeats few words, so most of them are looked up and not
    // merged.
    // The newest word takes the slot: memory is bounded and nothing is ever rehashed.
    static constexpr size_t cached_bytes = 30;
    struct alignas(64) CachedWord {
        uint8_t bytes = 0;  // 0: free
        uint8_t tokens = 0;
        char word[cached_bytes];
        uint16_t token[16];
    };
    // A run of bytes that is one token so far, in a doubly linked list over the word.
    struct Symbol {
        size_t previous, next;
        uint16_t token;
        // of its merge with its right neighbour; none: there is none, or it is no longer in the list
        uint16_t rank_with_next;
    };

    size_t home_slot(uint32_t pair) const { return (pair * uint64_t{0x9E3779B97F4A7C15}) >> 47; }  // 17 bits
    size_t slot_of(uint32_t pair) const;
    void merge_word(std::vector<uint16_t>& tokens, std::string_view word);
    void offer(size_t position);

    std::array<uint16_t, 256> byte_tokens_;
    std::vector<MergeSlot> ranks_;
    std::vector<uint16_t> merged_;  // the token that a rank's merge makes
    std::vector<CachedWord> cache_;
    // Scratch of merge_word, kept so that nothing is allocated once they have grown.
    std::vector<Symbol> symbols_;
    // min-heap of rank (16 bits) and position (48 bits); may hold outdated ones
    std::vector<uint64_t> candidates_;
};
