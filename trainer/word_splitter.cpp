#include "word_splitter.h"

#include <cstdint>
#include <cstring>

// \s spelled out: PCRE2's own also takes U+180E, which Unicode 6.3 removed from white space. A character matches exactly one of
// the classes, so no repetition can give back what it took (++) except \s+ before its lookahead.
static constexpr char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}++| ?\\p{N}++| ?[^\\t-\\r\\x{85}\\p{Z}\\p{L}\\p{N}]++"
    "|[\\t-\\r\\x{85}\\p{Z}]+(?![^\\t-\\r\\x{85}\\p{Z}])|[\\t-\\r\\x{85}\\p{Z}]++";

WordSplitter::WordSplitter() {
    int error = 0;
    size_t offset = 0;
    pattern_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(gpt2_pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED, &error, &offset, nullptr));
    if (!pattern_) throw Error(fmt::format("PCRE2 refuses the pre-tokenizer's pattern: error {} at {}", error, offset));
    // Where the system forbids machine code made at run time, the pattern is interpreted: slower, the same words.
    pcre2_jit_compile(pattern_.get(), PCRE2_JIT_COMPLETE);
    match_.reset(pcre2_match_data_create(1, nullptr));
    if (!match_) throw Error("the pre-tokenizer is out of memory");
}

size_t WordSplitter::word_end(std::string_view text, size_t start) const {
    const int result =
        pcre2_match(pattern_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
    if (result < 0) throw Error(fmt::format("PCRE2 failed with error {} on a word of the text", result));
    return pcre2_get_ovector_pointer(match_.get())[1];
}

// The table 3-7 of the Unicode Standard: no overlong forms, no surrogates, nothing past U+10FFFF.
size_t WordSplitter::character_bytes(std::string_view text) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
    const unsigned first = byte(0), second = byte(1);
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4 || !continues(1)) return 0;
    if (first < 0xE0) return 2;
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || !continues(2)) return 0;
    if (first < 0xF0) return 3;
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F) || !continues(3)) return 0;
    return 4;
}

size_t WordSplitter::valid_prefix(std::string_view text) {
    size_t end = 0;
    while (end < text.size()) {
        uint64_t eight;
        if (end + sizeof(eight) <= text.size()) {
            std::memcpy(&eight, text.data() + end, sizeof(eight));
            if ((eight & 0x8080808080808080) == 0) {
                end += sizeof(eight);
                continue;
            }
        }
        const size_t bytes = character_bytes(text.substr(end));
        if (bytes == 0) break;
        end += bytes;
    }
    return end;
}

size_t WordSplitter::invalid_prefix(std::string_view text) {
    size_t end = 0;
    while (end < text.size() && character_bytes(text.substr(end)) == 0) end++;
    return end;
}
