// byte_pair_encoding.h: splits a word into tokens. Among the neighbours that have a merge, those whose merge
//   comes first are merged, the leftmost first, until no neighbours have one.
//   Sennrich, Haddow and Birch 2016, arXiv:1508.07909, on bytes as in GPT-2.
//   O(n log n) for a word of n bytes; a cache holds most words of up to 30 bytes.
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
    // byte_tokens[b] is the token of byte b; merges[rank] comes before merges[rank + 1]. If a pair has two
    // merges, the later one is used.
    BytePairEncoding(const std::array<uint16_t, 256>& byte_tokens, const std::vector<Merge>& merges);

    // The merges by rank, with left = right = 0 for one that a later merge of its pair replaced.
    std::vector<Merge> merges() const;

    // The tokens that words can have.
    std::vector<uint16_t> all_tokens() const;

    // Appends the tokens of a word.
    void encode(std::vector<uint16_t>& tokens, std::string_view word);

private:
    static constexpr uint16_t none = max_merges;  // no merge has this rank
    // The table uses open addressing: a pair is in the first slot from its hash on that was free.
    struct MergeSlot {
        uint32_t pair = 0;
        uint16_t rank = none;  // none: a free slot
    };
    // A word and its tokens fill one cache line. Text repeats few words, so most are looked up instead of
    // merged. A new word replaces the one in its slot, so memory is bounded and nothing is rehashed.
    static constexpr size_t cached_bytes = 30;
    struct alignas(64) CachedWord {
        uint8_t bytes = 0;  // 0: free
        uint8_t tokens = 0;
        char word[cached_bytes];
        uint16_t token[16];
    };
    // A run of bytes that is one token so far. The symbols of a word are a doubly linked list.
    struct Symbol {
        size_t previous, next;
        uint16_t token;
        // rank of the merge with the right neighbour; none: no such merge, or no longer in the list
        uint16_t rank_with_next;
    };

    size_t home_slot(uint32_t pair) const { return (pair * uint64_t{0x9E3779B97F4A7C15}) >> 47; }  // 17 bits
    size_t slot_of(uint32_t pair) const;
    void merge_word(std::vector<uint16_t>& tokens, std::string_view word);
    void offer(size_t position);

    std::array<uint16_t, 256> byte_tokens_;
    std::vector<MergeSlot> ranks_;
    std::vector<uint16_t> merged_;  // result of the merge, by rank
    std::vector<CachedWord> cache_;
    // Scratch memory of merge_word, which keeps its size, so that most calls allocate nothing.
    std::vector<Symbol> symbols_;
    // min-heap of rank (16 bits) and position (48 bits); outdated entries remain in it
    std::vector<uint64_t> candidates_;
};
