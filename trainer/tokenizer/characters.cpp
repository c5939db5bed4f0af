#include "trainer/tokenizer/characters.h"

#include <algorithm>
#include <array>
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

bool is_word_character(const CodePoint& point) {
    if (point.bytes == 0) return false;
    const auto* const range = std::find_if(std::begin(unicode_word_marks), std::end(unicode_word_marks),
                                           [&](const UnicodeRange& some) { return point.code <= some.last; });
    return class_of(point.code) == CharacterClass::letter ||
           (range != std::end(unicode_word_marks) && point.code >= range->first);
}

}  // namespace

const CharacterClass* all_classes() {
    static const std::unique_ptr<const Classes> classes = read_classes();
    return classes->data();
}

CharacterClass class_of(char32_t character) {
    return character < code_points ? all_classes()[character] : CharacterClass::other;
}

CodePoint code_point_before(std::string_view text, size_t end) {
    for (size_t bytes = 1; bytes <= std::min<size_t>(4, end); bytes++) {
        const CodePoint point = code_point_at(text.substr(0, end), end - bytes);
        if (point.bytes == bytes) return point;
    }
    return {};
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
