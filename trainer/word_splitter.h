// word_splitter.h: GPT-2's pre-tokenizer: cuts text into the words that byte-pair encoding never merges across.
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   Radford et al. 2019, encoder.py; Unicode classes by PCRE2 (10.42 knows Unicode 14: later letters count as symbols).
// Bytes that are not UTF-8: a maximal run of them is a word, and the text before and after it is split as if it stood alone.
#pragma once
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "error.h"

class WordSplitter {
public:
    WordSplitter();

    // Calls consume(word) for every word in order; together they are the text.
    template <class Consume>
    void split(std::string_view text, Consume consume) const;

private:
    // Bytes of the UTF-8 character at the start of text, which is not empty; 0 if there is none.
    static size_t character_bytes(std::string_view text);
    static size_t valid_prefix(std::string_view text);
    static size_t invalid_prefix(std::string_view text);
    // The end of the word that starts at `start`, in valid UTF-8.
    size_t word_end(std::string_view text, size_t start) const;

    template <auto Free>
    struct Freeer {
        void operator()(auto* pointer) const { Free(pointer); }
    };
    std::unique_ptr<pcre2_code, Freeer<pcre2_code_free>> pattern_;
    std::unique_ptr<pcre2_match_data, Freeer<pcre2_match_data_free>> match_;
};

template <class Consume>
void WordSplitter::split(std::string_view text, Consume consume) const {
    while (!text.empty()) {
        const std::string_view valid = text.substr(0, valid_prefix(text));
        for (size_t start = 0, end; start < valid.size(); start = end) {
            end = word_end(valid, start);
            consume(valid.substr(start, end - start));
        }
        text.remove_prefix(valid.size());
        const size_t invalid = invalid_prefix(text);
        if (invalid > 0) consume(text.substr(0, invalid));
        text.remove_prefix(invalid);
    }
}
