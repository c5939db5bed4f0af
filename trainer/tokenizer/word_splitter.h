// word_splitter.h: GPT-2's pre-tokenizer: cuts text into words. Byte-pair encoding merges only within a word.
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   Radford et al. 2019, encoder.py. Letters and numbers are those of unicode_ranges.h: the tables of a
//   library, and with them the tokens, would depend on its version.
// A maximal run of bytes that are not UTF-8 is a word, and the text on either side of it is split by itself.
#pragma once
#include <cstddef>
#include <string_view>

enum class CharacterClass : unsigned char { other, letter, number, space };

CharacterClass class_of(char32_t character);

struct FirstCharacter {
    size_t bytes;
    bool is_number;  // in \p{N}
};
// The first character of a text that is not empty; a byte that is not UTF-8 counts as one.
FirstCharacter first_character(std::string_view text);

// Where the white space that ends at `end`, or begins at `begin`, has its other end.
size_t white_space_before(std::string_view text, size_t end);
size_t white_space_after(std::string_view text, size_t begin);
// True if the text ends or begins with a character of \w: a letter, a mark, a decimal digit, or one that
// joins words, such as _.
bool ends_with_word_character(std::string_view text);
bool begins_with_word_character(std::string_view text);

// True if a word of the text ends at a position for certain, whatever precedes the character before it. Not
// all ends of words are recognised.
bool word_ends_at(std::string_view text, size_t at);

// The bytes of the first word of a text that is not empty.
size_t first_word(std::string_view text);

// Calls consume(word) for every word in order. The words together are the text.
template <class Consume>
void split_words(std::string_view text, Consume consume) {
    while (!text.empty()) {
        const size_t bytes = first_word(text);
        consume(text.substr(0, bytes));
        text.remove_prefix(bytes);
    }
}
