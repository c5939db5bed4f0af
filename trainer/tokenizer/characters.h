// characters.h: UTF-8 and the classes of Unicode that patterns of words ask for: letters (\p{L}), numbers
//   (\p{N}) and white space (\s). The classes are those of unicode_ranges.h: the tables of a library, and
//   with them the tokens, would depend on its version.
#pragma once
#include <cstddef>
#include <string_view>

enum class CharacterClass : unsigned char { other, letter, number, space };

CharacterClass class_of(char32_t character);
// The classes of all code points below 0x110000.
const CharacterClass* all_classes();

struct CodePoint {
    size_t bytes = 0;  // 0 at the end of the text and at bytes that are not UTF-8
    char32_t code = 0;
};
// The character that begins at `at`. Accepts table 3-7 of the Unicode Standard: no overlong forms, no
// surrogates, nothing past U+10FFFF.
inline CodePoint code_point_at(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) {
        return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
    if (at >= text.size()) return {};
    const unsigned first = byte(0), second = byte(1);
    if (first < 0x80) return {1, first};
    if (first < 0xC2 || first > 0xF4 || !continues(1)) return {};
    if (first < 0xE0) return {2, (first & 0x1F) << 6 | (second & 0x3F)};
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || !continues(2)) return {};
    const unsigned third = byte(2) & 0x3F;
    if (first < 0xF0) return {3, (first & 0x0F) << 12 | (second & 0x3F) << 6 | third};
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F) || !continues(3)) return {};
    return {4, (first & 0x07) << 18 | (second & 0x3F) << 12 | third << 6 | (byte(3) & 0x3F)};
}
// The character that ends at `end`.
CodePoint code_point_before(std::string_view text, size_t end);

// Where the white space that ends at `end`, or begins at `begin`, has its other end.
size_t white_space_before(std::string_view text, size_t end);
size_t white_space_after(std::string_view text, size_t begin);
// True if the text ends or begins with a character of \w: a letter, a mark, a decimal digit, or one that
// joins words, such as _.
bool ends_with_word_character(std::string_view text);
bool begins_with_word_character(std::string_view text);
