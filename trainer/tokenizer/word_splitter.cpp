#include "trainer/tokenizer/word_splitter.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>

#include "trainer/tokenizer/unicode_ranges.h"

namespace {

constexpr size_t code_points = 0x110000;
using Classes = std::array<CharacterClass, code_points>;

std::unique_ptr<const Classes> read_classes() {
    auto classes = std::make_unique<Classes>();  // all are `other`
    const auto fill = [&](char32_t first, char32_t last, CharacterClass value) {
        std::fill(classes->begin() + first, classes->begin() + last + 1, value);
    };
    for (const auto& [first, last] : unicode_letters) fill(first, last, CharacterClass::letter);
    for (const auto& [first, last] : unicode_numbers) fill(first, last, CharacterClass::number);
    // Unicode's White_Space has had the same 25 characters since version 6.3.
    fill(U'\t', U'\r', CharacterClass::space);
    fill(0x2000, 0x200A, CharacterClass::space);
    for (const char32_t space : {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000})
        fill(space, space, CharacterClass::space);
    return classes;
}

const Classes& all_classes() {
    static const std::unique_ptr<const Classes> classes = read_classes();
    return *classes;
}

struct CodePoint {
    size_t bytes = 0;  // 0 at the end of the text and at bytes that are not UTF-8
    char32_t code = 0;
};
struct Character {
    size_t bytes = 0;  // as above
    CharacterClass kind = CharacterClass::other;
};

// Accepts table 3-7 of the Unicode Standard: no overlong forms, no surrogates, nothing past U+10FFFF.
CodePoint code_point_at(std::string_view text, size_t at) {
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

Character character_at(const Classes& classes, std::string_view text, size_t at) {
    const auto [bytes, code] = code_point_at(text, at);
    return bytes == 0 ? Character{} : Character{bytes, classes[code]};
}

// The character that ends at `end`.
CodePoint code_point_before(std::string_view text, size_t end) {
    for (size_t bytes = 1; bytes <= std::min<size_t>(4, end); bytes++) {
        const CodePoint point = code_point_at(text.substr(0, end), end - bytes);
        if (point.bytes == bytes) return point;
    }
    return {};
}

bool is_word_character(const CodePoint& point) {
    if (point.bytes == 0) return false;
    const auto* const range = std::find_if(std::begin(unicode_word_marks), std::end(unicode_word_marks),
                                           [&](const UnicodeRange& some) { return point.code <= some.last; });
    return class_of(point.code) == CharacterClass::letter ||
           (range != std::end(unicode_word_marks) && point.code >= range->first);
}

size_t contraction(std::string_view text) {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
        if (text.starts_with(ending)) return ending.size();
    }
    return 0;
}

}  // namespace

CharacterClass class_of(char32_t character) {
    return character < code_points ? all_classes()[character] : CharacterClass::other;
}

FirstCharacter first_character(std::string_view text) {
    const Character first = character_at(all_classes(), text, 0);
    return {std::max<size_t>(first.bytes, 1), first.kind == CharacterClass::number};
}

size_t white_space_before(std::string_view text, size_t end) {
    for (CodePoint point; (point = code_point_before(text, end)).bytes > 0; end -= point.bytes) {
        if (class_of(point.code) != CharacterClass::space) break;
    }
    return end;
}

size_t white_space_after(std::string_view text, size_t begin) {
    for (CodePoint point; (point = code_point_at(text, begin)).bytes > 0; begin += point.bytes) {
        if (class_of(point.code) != CharacterClass::space) break;
    }
    return begin;
}

bool ends_with_word_character(std::string_view text) {
    return is_word_character(code_point_before(text, text.size()));
}

bool begins_with_word_character(std::string_view text) { return is_word_character(code_point_at(text, 0)); }

// No alternative of the pattern goes on from a letter or a number to a character of another class, nor from
// anything but white space to white space. The only lookahead, (?!\S), follows white space.
bool word_ends_at(std::string_view text, size_t at) {
    const CodePoint before = code_point_before(text, at);
    if (before.bytes == 0) return false;
    const CharacterClass kind = class_of(before.code);
    const Character after = character_at(all_classes(), text, at);
    if (after.bytes > 0 && after.kind == CharacterClass::space) return kind != CharacterClass::space;
    const bool alone = kind == CharacterClass::letter || kind == CharacterClass::number;
    return alone && (after.bytes == 0 || after.kind != kind);
}

size_t first_word(std::string_view text) {
    const Classes& classes = all_classes();
    const auto at = [&](size_t place) { return character_at(classes, text, place); };
    // Returns the end of the run of characters of one class from `end` on; `last` is the start of the last
    // one.
    size_t last = 0;
    const auto end_of_run = [&](size_t end, CharacterClass kind) {
        for (Character next; (next = at(end)).bytes > 0 && next.kind == kind; end += next.bytes) last = end;
        return end;
    };

    const Character first = at(0);
    if (first.bytes == 0) {
        size_t end = 1;
        while (end < text.size() && at(end).bytes == 0) end++;
        return end;
    }
    if (text[0] == '\'') {
        if (const size_t bytes = contraction(text)) return bytes;
    }
    if (first.kind != CharacterClass::space) return end_of_run(0, first.kind);
    if (text[0] == ' ') {
        const Character next = at(1);
        if (next.bytes > 0 && next.kind != CharacterClass::space) return end_of_run(1, next.kind);
    }
    // White space at the end of the text is one word. Elsewhere the last of several characters belongs to the
    // next word.
    const size_t end = end_of_run(0, CharacterClass::space);
    return at(end).bytes == 0 || last == 0 ? end : last;
}
