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

struct Character {
    size_t bytes = 0;  // 0 at the end of the text and at bytes that are not UTF-8
    CharacterClass kind = CharacterClass::other;
};

// Accepts table 3-7 of the Unicode Standard: no overlong forms, no surrogates, nothing past U+10FFFF.
Character character_at(const Classes& classes, std::string_view text, size_t at) {
    const auto byte = [&](size_t i) {
        return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
    if (at >= text.size()) return {};
    const unsigned first = byte(0), second = byte(1);
    if (first < 0x80) return {1, classes[first]};
    if (first < 0xC2 || first > 0xF4 || !continues(1)) return {};
    if (first < 0xE0) return {2, classes[(first & 0x1F) << 6 | (second & 0x3F)]};
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || !continues(2)) return {};
    const unsigned third = byte(2) & 0x3F;
    if (first < 0xF0) return {3, classes[(first & 0x0F) << 12 | (second & 0x3F) << 6 | third]};
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F) || !continues(3)) return {};
    return {4, classes[(first & 0x07) << 18 | (second & 0x3F) << 12 | third << 6 | (byte(3) & 0x3F)]};
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
