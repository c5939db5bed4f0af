// Utf8Stream, over every split of its input, against a decoder written the other way round: first a
// character's code point, then the bytes that it must have.
#include <gtest/gtest.h>

#include <random>

#include "system/utf8_stream.h"

namespace {

// The length of the valid character at the front of bytes, by its definition; 0 if there is none.
size_t character_length(std::string_view bytes) {
    static constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t length = 1; length <= std::min<size_t>(4, bytes.size()); length++) {
        const auto byte = [&](size_t i) {
            return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i]));
        };
        // 0xxxxxxx, 110xxxxx, 1110xxxx, 11110xxx
        const uint32_t mark = length == 1 ? 0x00 : 0xFF00u >> length & 0xFF,
                       mask = length == 1 ? 0x80 : 0xFF80u >> length & 0xFF;
        if ((byte(0) & mask) != mark) continue;
        uint32_t code = length == 1 ? byte(0) : byte(0) & (0x7Fu >> length);
        bool continued = true;
        for (size_t i = 1; i < length; i++) {
            continued &= (byte(i) & 0xC0) == 0x80;
            code = code << 6 | (byte(i) & 0x3F);
        }
        if (continued && code >= smallest[length] && code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF))
            return length;
    }
    return 0;
}

// True if bytes are the start of a valid character: tries the possible continuations.
bool can_become_a_character(const std::string& bytes) {
    if (bytes.empty() || bytes.size() > 3 || character_length(bytes) > 0) return false;
    // Any continuation is valid after the second byte, and the second is among these four.
    for (const char second : {'\x80', '\x90', '\xA0', '\xBF'}) {
        std::string longer = bytes;
        if (longer.size() == 1) longer += second;
        while (longer.size() < 4) {
            if (character_length(longer) == longer.size()) return true;
            longer += '\x80';
        }
        if (character_length(longer) == longer.size()) return true;
    }
    return false;
}

// The longest end of bytes that can become a character: the bytes that must be held back.
std::string kept_back(const std::string& bytes) {
    // Reads characters and invalid bytes from the front, so that an end is not taken from inside a character.
    size_t at = 0;
    while (at < bytes.size()) {
        const std::string rest = bytes.substr(at);
        if (can_become_a_character(rest)) return rest;
        at += std::max<size_t>(1, character_length(rest));
    }
    return "";
}

// For all splits, the output and the held-back bytes together are the input, and exactly the necessary
// bytes are held back.
void expect_exact(const std::vector<std::string>& pieces) {
    Utf8Stream stream;
    std::string input, output, replaced;
    for (const std::string& piece : pieces) {
        input += piece;
        const std::string shown = stream.push(piece);
        output += shown;
        replaced += replace_invalid_utf8(shown);
        ASSERT_EQ(output + stream.pending(), input);
        ASSERT_EQ(stream.pending(), kept_back(input)) << testing::PrintToString(pieces);
    }
    ASSERT_EQ(replaced + replace_invalid_utf8(stream.pending()), replace_invalid_utf8(input));
}

void expect_exact_in_every_split(const std::string& text) {
    for (size_t cuts = 0; cuts < size_t{1} << (text.size() - 1); cuts++) {
        std::vector<std::string> pieces = {""};
        for (size_t i = 0; i < text.size(); i++) {
            pieces.back() += text[i];
            if (cuts >> i & 1) pieces.emplace_back();
        }
        expect_exact(pieces);
    }
}

TEST(Utf8Stream, EverySplitOfMixedText) {
    for (const char* text : {"a\u00E9\u20AC\U0001F600z", "\U0001F600\U0001F468", "\u65E5\u672C\u8A9E!",
                             "\U0010FFFF\u0800\u007F\u0080"}) {
        expect_exact_in_every_split(text);
    }
}

TEST(Utf8Stream, EverySplitOfInvalidSequences) {
    const std::vector<std::string> texts = {
        "\xC0\xAF\xE0\x80\xAF\xF0\x80\x80\xAF",  // overlong forms of '/'
        "\xED\xA0\x80\xED\x9F\xBF",              // a surrogate, and the last character before them
        "\xF4\x90\x80\x80\xF4\x8F\xBF\xBF",      // past the last code point, and the last
        "\xE2\x82\xE2\x82\xAC\xE2",
        "\xF0\x9F\x98\xF0\x9F\x98\x80\xF0",  // interrupted by the next one
        "\x80\xBF\xFF\xFE\xF8\x88\x80",
        "\xE2\x82\x61\xC3\x28\xC3",
    };
    for (const std::string& text : texts) expect_exact_in_every_split(text);
}

TEST(Utf8Stream, RandomBytesThatFavourLeadsAndContinuations) {
    std::mt19937 random(5);
    const std::string favoured =
        "\x41\x80\x8F\x90\x9F\xA0\xBF\xC1\xC2\xDF\xE0\xE2\xED\xEF\xF0\xF1\xF4\xF5\xFF";
    for (int trial = 0; trial < 20000; trial++) {
        std::vector<std::string> pieces(1 + random() % 6);
        for (std::string& piece : pieces) {
            piece.resize(random() % 4);
            for (char& c : piece) c = favoured[random() % favoured.size()];
        }
        expect_exact(pieces);
    }
}

TEST(Utf8Stream, IsDecidedAsSoonAsItCanBe) {
    Utf8Stream stream;
    EXPECT_EQ(stream.push("\xF0\x9F\x98"), "");
    EXPECT_EQ(stream.push("\x80"), "\U0001F600");
    EXPECT_EQ(stream.push("\xE0"), "");
    EXPECT_EQ(stream.push("\x80"), "\xE0\x80");  // overlong with any next byte
    EXPECT_EQ(stream.push("\xFF"), "\xFF");
    EXPECT_EQ(stream.push(""), "");
    EXPECT_EQ(stream.push("\xC3"), "");
    EXPECT_EQ(stream.pending(), "\xC3");
}

// The examples of Unicode 15, section 3.9, and the results of Python's errors="replace".
TEST(ReplaceInvalidUtf8, OncePerMaximalSubpart) {
    const std::string r = "\uFFFD";
    EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
              r + r + r + r + r + r + r + r + "A");
    EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
              r + r + r + r + r + r + r + r + "A");
    EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
              r + r + r + r + r + "A" + r + r + "B");
    EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
    EXPECT_EQ(replace_invalid_utf8("a\u00E9\u20AC\U0001F600\xE2\x82"), "a\u00E9\u20AC\U0001F600" + r);
    EXPECT_EQ(replace_invalid_utf8(""), "");
}

}  // namespace

// Positions by the definition: Python's bytes.decode names the start of the first bad sequence.
TEST(FirstInvalidUtf8, IsWhereTheFirstBadCharacterBegins) {
    const std::pair<std::string, size_t> cases[] = {{"", 0},
                                                    {"plain text of more than eight bytes", 35},
                                                    {"caf\xE9 au lait", 3},
                                                    {"12345678\x80", 8},
                                                    {"1234567€\xE2\x82", 10},
                                                    {"\xC0\xAF", 0},
                                                    {"ab\xED\xA0\x80", 2},
                                                    {"\xF4\x8F\xBF\xBF\xF4\x90\x80\x80", 4},
                                                    {std::string("\0é\0", 4), 4}};
    for (const auto& [bytes, position] : cases) EXPECT_EQ(first_invalid_utf8(bytes), position) << bytes;
}
