// byte_pair_encoding.h: splits a word into tokens. Among the neighbours that have a merge, those whose merge
//   comes first are merged, the leftmost first, until no neighbours have one.
//   Sennrich, Haddow and Birch 2016, arXiv:1508.07909, on bytes as in GPT-2.
//   Short words are merged in a plain array, and long ones by a heap in O(n log n). A cache holds most words
//   of up to 30 bytes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trainer/tokenizer/token.h"

class BytePairEncoding {
public:
    struct Merge {
        Token left, right, merged;
    };
    // byte_tokens[b] is the token of byte b; merges[rank] comes before merges[rank + 1]. If a pair has two
    // merges, the later one is used.
    BytePairEncoding(const std::array<Token, 256>& byte_tokens, const std::vector<Merge>& merges);
    // A word that is one of these is its token, whatever the merges would make of it.
    void set_whole_words(std::unordered_map<std::string, Token> words) { whole_words_ = std::move(words); }

    // The merges by rank, with left = right = 0 for one that a later merge of its pair replaced.
    std::vector<Merge> merges() const;

    // The tokens that words can have.
    std::vector<Token> all_tokens() const;

    // Tokens that grow by one word at a time, in a vector that is resized rarely.
    class Output {
    public:
        explicit Output(std::vector<Token>& tokens) : tokens_(tokens), size_(tokens.size()) {}
        ~Output() { tokens_.resize(size_); }
        Output(const Output&) = delete;

    private:
        friend class BytePairEncoding;
        Token* room_for(size_t count) {
            if (tokens_.size() - size_ < count) tokens_.resize(size_ + size_ / 2 + count + 1024);
            return tokens_.data() + size_;
        }
        std::vector<Token>& tokens_;
        size_t size_;
    };
    // Appends the tokens of a word.
    void encode(Output& tokens, std::string_view word);

private:
    static constexpr uint32_t none = UINT32_MAX;  // no merge has this rank
    // The table uses open addressing: a pair is in the first slot from its hash on that was free.
    struct MergeSlot {
        uint64_t pair = 0;
        uint32_t rank = none;  // none: a free slot
        Token merged = 0;
    };
    // A word and its tokens fill one cache line. Text repeats few words, so most are looked up instead of
    // merged. A new word replaces the one in its slot, so memory is bounded and nothing is rehashed.
    static constexpr size_t cached_bytes = 30, cached_tokens = 8;
    struct alignas(64) CachedWord {
        uint8_t bytes = 0;  // 0: free
        uint8_t tokens = 0;
        char word[cached_bytes];
        Token token[cached_tokens];
    };
    // A run of bytes that is one token so far. The symbols of a word are a doubly linked list.
    struct Symbol {
        size_t previous, next;
        Token token;
        // rank of the merge with the right neighbour; none: no such merge, or no longer in the list
        uint32_t rank_with_next;
    };
    // A candidate of the heap. One that is outdated remains in it.
    struct Candidate {
        uint32_t rank;
        size_t position;
        bool operator>(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : position > other.position;
        }
    };

    static uint64_t hash_of(std::string_view word);
    const MergeSlot& slot_of(Token left, Token right) const;
    uint32_t rank_of(Token left, Token right) const { return slot_of(left, right).rank; }
    size_t merge(Token* tokens, std::string_view word);
    size_t merge_short(Token* tokens, std::string_view word) const;
    size_t merge_long(Token* tokens, std::string_view word);
    void offer(size_t position);

    std::array<Token, 256> byte_tokens_;
    std::vector<uint32_t> byte_ranks_;  // of the merges of two bytes, by left * 256 + right
    std::vector<MergeSlot> slots_;
    int shift_ = 0;              // of a hash to a slot
    std::vector<Token> merged_;  // result of the merge, by rank
    std::unordered_map<std::string, Token> whole_words_;
    std::vector<CachedWord> cache_;
    // Scratch memory of merge_long, which keeps its size, so that most calls allocate nothing.
    std::vector<Symbol> symbols_;
    std::vector<Candidate> candidates_;  // min-heap
};
