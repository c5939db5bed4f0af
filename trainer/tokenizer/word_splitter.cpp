#include "trainer/tokenizer/word_splitter.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "system/error.h"
#include "trainer/tokenizer/characters.h"

namespace {

struct Character {
    size_t bytes = 0;  // 0 at the end of the text and at bytes that are not UTF-8
    CharacterClass kind = CharacterClass::other;
};

// A text with the ends of the runs in it.
class Reader {
public:
    explicit Reader(std::string_view text) : text_(text), classes_(classes()) {}

    bool is(size_t at, char byte) const { return at < text_.size() && text_[at] == byte; }
    bool is_newline(size_t at) const { return is(at, '\n') || is(at, '\r'); }

    Character at(size_t index) const {
        if (index < text_.size()) {
            const auto byte = static_cast<unsigned char>(text_[index]);
            if (byte < 0x80) return {1, classes_[byte]};
        }
        const auto [bytes, code] = code_point_at(text_, index);
        return bytes == 0 ? Character{} : Character{bytes, classes_[code]};
    }
    // The end of the run of characters of one class from `end` on.
    size_t end_of_run(size_t end, CharacterClass kind) const {
        for (Character next; (next = at(end)).bytes > 0 && next.kind == kind;) end += next.bytes;
        return end;
    }
    size_t end_of_newlines(size_t end) const {
        while (is_newline(end)) end++;
        return end;
    }
    // The end of a run of bytes that are not UTF-8 and begin the text.
    size_t end_of_invalid() const {
        size_t end = 1;
        while (end < text_.size() && at(end).bytes == 0) end++;
        return end;
    }

private:
    static const CharacterClass* classes() {
        static const CharacterClass* const all = all_classes();
        return all;
    }
    std::string_view text_;
    const CharacterClass* classes_;
};

// The white space that begins a text.
struct Space {
    size_t end = 0;
    size_t last = 0;            // start of its last character
    size_t after_newlines = 0;  // end of its last \r or \n; 0 if it has none
};

Space space_of(const Reader& text) {
    Space space;
    for (Character next; (next = text.at(space.end)).bytes > 0 && next.kind == CharacterClass::space;) {
        space.last = space.end;
        if (text.is_newline(space.end)) space.after_newlines = space.end + 1;
        space.end += next.bytes;
    }
    return space;
}

// \s+(?!\S)|\s+: white space at the end of the text is one word. Elsewhere the last of several characters
// belongs to the next word.
size_t end_of_space(const Reader& text, const Space& space) {
    return text.at(space.end).bytes == 0 || space.last == 0 ? space.end : space.last;
}

// 's|'t|'re|'ve|'m|'ll|'d
size_t contraction(std::string_view text) {
    if (text.size() < 2 || text[0] != '\'') return 0;
    const char first = text[1], second = text.size() > 2 ? text[2] : '\0';
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    const bool two = (second == 'e' && (first == 'r' || first == 'v')) || (first == 'l' && second == 'l');
    return two ? 3 : 0;
}

// The same in any case. Without regard to case, U+017F is an s.
size_t contraction_of_any_case(std::string_view text) {
    if (text.size() < 2 || text[0] != '\'') return 0;
    const auto lower = [](char letter) {
        return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter | 0x20) : letter;
    };
    const char three[] = {'\'', lower(text[1]), text.size() > 2 ? lower(text[2]) : '\0'};
    if (text.substr(1).starts_with("\xC5\xBF")) return 3;
    return contraction({three, std::min<size_t>(text.size(), 3)});
}

size_t first_of_gpt2(std::string_view text) {
    const Reader reader(text);
    const Character first = reader.at(0);
    if (first.bytes == 0) return reader.end_of_invalid();
    if (text[0] == '\'') {
        if (const size_t bytes = contraction(text)) return bytes;
    }
    if (first.kind != CharacterClass::space) return reader.end_of_run(first.bytes, first.kind);
    if (text[0] == ' ') {
        const Character next = reader.at(1);
        if (next.bytes > 0 && next.kind != CharacterClass::space)
            return reader.end_of_run(1 + next.bytes, next.kind);
    }
    return end_of_space(reader, space_of(reader));
}

// most_digits: of a word of numbers. space_ends_text: \s+$ comes first among the kinds of white space.
template <int most_digits, bool space_ends_text>
size_t first_of_gpt4(std::string_view text) {
    const Reader reader(text);
    const Character first = reader.at(0);
    if (first.bytes == 0) return reader.end_of_invalid();
    if (first.kind == CharacterClass::letter) return reader.end_of_run(first.bytes, first.kind);
    if (first.kind == CharacterClass::number) {
        size_t end = first.bytes;
        for (int digits = 1; digits < most_digits; digits++) {
            const Character next = reader.at(end);
            if (next.bytes == 0 || next.kind != CharacterClass::number) break;
            end += next.bytes;
        }
        return end;
    }
    if (text[0] == '\'') {
        if (const size_t bytes = contraction_of_any_case(text)) return bytes;
    }
    const Character next = reader.at(first.bytes);
    if (next.bytes > 0 && next.kind == CharacterClass::letter && !reader.is_newline(0))
        return reader.end_of_run(first.bytes + next.bytes, next.kind);
    if (first.kind == CharacterClass::other)
        return reader.end_of_newlines(reader.end_of_run(first.bytes, first.kind));
    if (text[0] == ' ' && next.bytes > 0 && next.kind == CharacterClass::other)
        return reader.end_of_newlines(reader.end_of_run(1 + next.bytes, next.kind));
    const Space space = space_of(reader);
    if (space_ends_text && reader.at(space.end).bytes == 0) return space.end;
    if (space.after_newlines > 0) return space.after_newlines;
    return end_of_space(reader, space);
}

// The step Digits of tokenizers 0.23 knows the numbers of Unicode 17; its patterns, like ours, those of 16.
bool is_number_for_digits(const CodePoint& point) {
    const char32_t code = point.code;
    const bool new_number = (code >= 0x11DE0 && code <= 0x11DE9) || (code >= 0x16FF4 && code <= 0x16FF6);
    return point.bytes > 0 && (new_number || class_of(code) == CharacterClass::number);
}

template <bool one_by_one>
size_t first_by_digits(std::string_view text) {
    const CodePoint first = code_point_at(text, 0);
    const bool is_number = is_number_for_digits(first);
    size_t end = std::max<size_t>(first.bytes, 1);
    if (is_number && one_by_one) return end;
    while (end < text.size()) {
        const CodePoint next = code_point_at(text, end);
        if (is_number_for_digits(next) != is_number) break;
        end += std::max<size_t>(next.bytes, 1);
    }
    return end;
}

constexpr std::pair<SplitPattern, std::string_view> regexes[] = {
    // The first of a pattern is the one that is written.
    {SplitPattern::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitPattern::gpt2, R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {SplitPattern::gpt2,
     R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"},
    {SplitPattern::gpt4,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s++\z|)"
     R"(\s*[\r\n]|\s+(?!\S)|\s+)"},
    // tiktoken's own: for the regular expressions of Hugging Face's tokenizers, {1,3}+ repeats {1,3}.
    {SplitPattern::gpt4_number_runs,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|)"
     R"(\s*[\r\n]|\s+(?!\S)|\s)"},
    {SplitPattern::llama3,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {SplitPattern::llama3,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)"
     R"(\s+(?!\S)|\s+)"},
    {SplitPattern::nanochat,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)"
     R"(\s+(?!\S)|\s+)"},
    {SplitPattern::qwen,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

size_t (*function_of(SplitPattern pattern))(std::string_view) {
    switch (pattern) {
        case SplitPattern::gpt2: return first_of_gpt2;
        case SplitPattern::gpt4: return first_of_gpt4<3, true>;
        case SplitPattern::gpt4_number_runs: return first_of_gpt4<INT_MAX, true>;
        case SplitPattern::llama3: return first_of_gpt4<3, false>;
        case SplitPattern::nanochat: return first_of_gpt4<2, false>;
        case SplitPattern::qwen: return first_of_gpt4<1, false>;
        case SplitPattern::digits: return first_by_digits<true>;
        case SplitPattern::digit_runs: return first_by_digits<false>;
    }
    throw Error("a pattern that has no function");
}

// No alternative of gpt2 goes on from a letter or a number to a character of another class, nor from
// anything but white space to white space. The only lookahead, (?!\S), follows white space.
// The others go on from a character that is none of the three to a letter, and to newlines; their words of
// white space end behind the last newline.
bool pattern_ends_at(SplitPattern pattern, std::string_view text, size_t at) {
    const Reader reader(text);
    const CodePoint before = code_point_before(text, at);
    if (before.bytes == 0) return false;
    const CharacterClass kind = class_of(before.code);
    const Character after = reader.at(at);
    if (pattern == SplitPattern::digits || pattern == SplitPattern::digit_runs) {
        const bool is_number = is_number_for_digits(before);
        return is_number != is_number_for_digits(code_point_at(text, at)) ||
               (is_number && pattern == SplitPattern::digits);
    }
    const bool ends = after.bytes == 0, space_follows = !ends && after.kind == CharacterClass::space;
    const bool alone = kind == CharacterClass::letter || kind == CharacterClass::number;
    const bool is_space = kind == CharacterClass::space;
    if (alone) return ends || after.kind != kind;
    if (pattern == SplitPattern::gpt2) return space_follows && !is_space;
    if (is_space) return !ends && !space_follows && reader.is_newline(at - 1);
    return space_follows && !reader.is_newline(at);
}

}  // namespace

std::optional<SplitPattern> pattern_of_regex(std::string_view regex) {
    for (const auto& [pattern, text] : regexes)
        if (text == regex) return pattern;
    return std::nullopt;
}

std::string_view regex_of(SplitPattern pattern) {
    for (const auto& [named, text] : regexes)
        if (named == pattern) return text;
    throw Error("a pattern that has no regular expression");
}

size_t first_word(SplitPattern pattern, std::string_view text) { return function_of(pattern)(text); }

WordSplitter::WordSplitter(const std::vector<SplitPattern>& steps) : steps_(steps) {
    for (const SplitPattern step : steps) functions_.push_back(function_of(step));
}

// An end of a word of the first step is one of all steps. After a step that cuts at digits, words end at
// least where the next step lets them end.
bool WordSplitter::word_ends_at(std::string_view text, size_t at) const {
    const auto is_digits = [](SplitPattern step) {
        return step == SplitPattern::digits || step == SplitPattern::digit_runs;
    };
    if (steps_.empty()) return false;
    const auto step = std::find_if_not(steps_.begin(), steps_.end(), is_digits);
    return pattern_ends_at(step == steps_.end() ? steps_.front() : *step, text, at);
}
