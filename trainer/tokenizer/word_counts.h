// word_counts.h: the distinct words of texts and how often each of them stands there.
//   A word takes its bytes and about 40 more.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

class WordCounts {
public:
    void add(std::string_view word, uint64_t count = 1);
    void add(const WordCounts& others);
    void clear() { *this = WordCounts(); }
    size_t size() const { return words_.size(); }

    // Drops the rarest words, all words of one count or none of them, so that at most `most` are left.
    // Returns how many it drops.
    size_t keep(size_t most);

    template <class Consume>
    void for_each(const Consume& consume) const {
        for (const Word& word : words_)
            consume(std::string_view(bytes_).substr(word.begin, word.size), word.count);
    }

private:
    struct Word {
        uint64_t begin, count;
        uint32_t size, hash;
    };
    void make_room();

    std::string bytes_;  // of all words, one behind the other
    std::vector<Word> words_;
    // Open addressing: a word's place in words_ plus 1, in the first slot from its hash on that was free.
    std::vector<uint32_t> slots_;
};
