// Tokenizers: GPT-2's agrees with OpenAI's tiktoken, and every byte sequence decodes back to itself.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "environment.h"
#include "kernels/simt/target.h"
#include "pieces.h"
#include "reference_strings.h"
#include "system/data_directory.h"
#include "temporary_folder.h"
#include "trainer/tokenizer/characters.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/word_splitter.h"

static Tokenizer& gpt2() {
    static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("gpt2");
    return *tokenizer;
}

static uint64_t hash(const std::vector<Token>& tokens) {
    const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
    return XXH3_64bits(narrow.data(), narrow.size() * sizeof(uint16_t));
}

struct KnownText {
    const char* file;
    size_t tokens;
    uint64_t xxh3;  // of the tokens as uint16
};

// The xxHash of the token streams. Their MD5, equal to that of tiktoken's streams, is
// 00147b5d5a7c97c63978387b19acc227 and 7cd321f1839a018207bd1bb5b6db8362.
static constexpr KnownText known_texts[] = {{"tinyshakespeare.txt", 338'025, 0x182ca92e5023d0fa},
                                            {"wikitext2_valid.txt", 258'659, 0x35c1f07862252aa0}};

TEST(Gpt2Tokenizer, AgreesWithTiktokenOnRealText) {
    for (const KnownText& known : known_texts) {
        const std::string text = read_file(data_directory() + "/" + known.file);
        const std::vector<Token> tokens = gpt2().encode(text);
        EXPECT_EQ(tokens.size(), known.tokens) << known.file;
        EXPECT_EQ(hash(tokens), known.xxh3) << known.file;
        EXPECT_EQ(gpt2().decode(tokens), text) << known.file;
    }
    const std::vector<Token> beginning = {5962, 22307, 25, 198, 8421, 356, 5120, 597};
    EXPECT_EQ(gpt2().encode("First Citizen:\nBefore we proceed any"), beginning);
}

// 10,000 strings by dev/reference_tokenizer.py.
template <class Check>
static void for_each_tiktoken_string(Check check) {
    EXPECT_EQ(for_each_reference_string("tiktoken.bin", check), 10'000u);
}

TEST(Gpt2Tokenizer, AgreesWithTiktokenOnRandomUnicode) {
    for_each_tiktoken_string([](const std::string& text, const std::vector<Token>& tokens) {
        EXPECT_EQ(gpt2().encode(text), tokens);
        EXPECT_EQ(gpt2().decode(tokens), text);
    });
}

TEST(Gpt2Tokenizer, EncodingInPiecesGivesTheTokensOfTheWhole) {
    for_each_tiktoken_string([](const std::string& text, const std::vector<Token>& tokens) {
        EXPECT_EQ(encode_in_pieces(gpt2(), text, 1), tokens);
    });
    for (const KnownText& known : known_texts) {
        const std::string text = read_file(data_directory() + "/" + known.file);
        for (const size_t piece : {1, 1000, 0, 1 << 20}) {
            if (simt::checked && piece != 1 && piece != 1000) break;
            EXPECT_EQ(hash(encode_in_pieces(gpt2(), text, piece)), known.xxh3)
                << known.file << " by " << piece;
        }
    }
}

static std::string utf8_of(uint32_t code) {
    const auto last = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
    if (code >= 0xD800 && code < 0xE000) return "";  // surrogates are no characters
    if (code < 0x80) return {static_cast<char>(code)};
    if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), last(0)};
    if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), last(6), last(0)};
    return {static_cast<char>(0xF0 | code >> 18), last(12), last(6), last(0)};
}

// The sums are those of tiktoken 0.14's classes (Unicode 16.0), by dev/unicode_classes.py, which compares
// every character.
TEST(WordSplitter, EveryCharacterHasTheClassThatTiktokenGivesIt) {
    struct Sums {
        uint64_t characters = 0, codes = 0, squares = 0;
        bool operator==(const Sums&) const = default;
    };
    std::map<CharacterClass, Sums> sums;
    for (uint64_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;  // surrogates are no characters
        Sums& of_class = sums[class_of(static_cast<char32_t>(code))];
        of_class = {of_class.characters + 1, of_class.codes + code, of_class.squares + code * code};
    }
    EXPECT_EQ(sums[CharacterClass::letter], (Sums{141'028, 15'240'929'258, 2'236'548'536'335'250}));
    EXPECT_EQ(sums[CharacterClass::number], (Sums{1'911, 110'651'895, 9'773'865'135'401}));
    const char32_t spaces[] = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,   0xA0,   0x1680,
                               0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008,
                               0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    EXPECT_EQ(sums[CharacterClass::space].characters, std::size(spaces));
    for (const char32_t space : spaces)
        EXPECT_EQ(class_of(space), CharacterClass::space) << std::hex << static_cast<uint32_t>(space);
    // \w of tiktoken's regex crate, by the same script
    uint64_t word_characters = 0, sum = 0;
    for (uint32_t code = 0; code < 0x110000; code++) {
        const std::string character = utf8_of(code);
        if (character.empty() || !begins_with_word_character(character)) continue;
        EXPECT_TRUE(ends_with_word_character(" " + character)) << std::hex << code;
        word_characters++;
        sum += code;
    }
    EXPECT_EQ(word_characters, 144'667u);
    EXPECT_EQ(sum, 15'621'645'388u);
    // Letters of Unicode 15 and 16, and a number: PCRE2 10.42 treated them as symbols, which become words
    // of their own.
    for (const std::string_view word : {"a\xF0\x9E\x93\x90", "a\xEA\x9F\x9A", "a\xF0\x90\x97\x80"})
        EXPECT_EQ(first_word(SplitPattern::gpt2, word), word.size()) << word;
    EXPECT_EQ(first_word(SplitPattern::gpt2, "1\xF0\x91\xBD\x90z"), 5u);
}

// Random bytes, most of them not UTF-8: characters cut short, lone continuation bytes, overlong forms,
// surrogates, text between.
static std::string random_bytes(std::mt19937& random) {
    static const std::vector<std::string> fragments = {"\xE2\x82", "\xF0\x9F\x98", "\x80",
                                                       "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                                       "\xFF\xFE", "\xE2\x82\xAC", " word",
                                                       "'s",       "  ",           "\n",
                                                       "123",      "\xC3\xA9",     std::string(1, '\0')};
    std::string text;
    for (int pieces = random() % 20; pieces > 0; pieces--) {
        if (random() % 2) text += fragments[random() % fragments.size()];
        else text += static_cast<char>(random());
    }
    return text;
}

TEST(Gpt2Tokenizer, AnyBytesDecodeBackToThemselves) {
    std::mt19937 random(1);
    for (int i = 0; i < 20'000; i++) {
        const std::string text = random_bytes(random);
        SCOPED_TRACE(::testing::PrintToString(text));
        const std::vector<Token> tokens = gpt2().encode(text);
        EXPECT_EQ(gpt2().decode(tokens), text);
        EXPECT_EQ(encode_in_pieces(gpt2(), text, 1), tokens);
    }
    std::string all;
    for (int byte = 0; byte < 65'536; byte++) all += {static_cast<char>(byte >> 8), static_cast<char>(byte)};
    EXPECT_EQ(gpt2().decode(gpt2().encode(all)), all);
}

TEST(Gpt2Tokenizer, InvalidBytesAreAWordOfTheirOwn) {
    const auto joined = [](std::initializer_list<std::string_view> parts) {
        std::vector<Token> tokens;
        for (const std::string_view part : parts)
            for (const Token token : gpt2().encode(part)) tokens.push_back(token);
        return tokens;
    };
    EXPECT_EQ(gpt2().encode("two words \xFF\xFE more"), joined({"two words ", "\xFF\xFE", " more"}));
    EXPECT_EQ(gpt2().encode("cut \xE2\x82"), joined({"cut ", "\xE2\x82"}));
}

TEST(Gpt2Tokenizer, EndOfTextNeverComesFromText) {
    EXPECT_EQ(gpt2().end_of_text(), 50256);
    EXPECT_EQ(gpt2().vocab_size(), 50257);
    EXPECT_EQ(gpt2().token_bytes(50256), "<|endoftext|>");
    const std::vector<Token> tokens = gpt2().encode("<|endoftext|>");
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 50256), 0);
    EXPECT_EQ(gpt2().decode(tokens), "<|endoftext|>");
}

TEST(Gpt2Tokenizer, EndOfTextInATextIsATokenOrIsCounted) {
    const std::string text = "a<|endoftext|><|endoftext|> b";
    const std::unique_ptr<Tokenizer> counts = make_tokenizer("gpt2"), reads = make_tokenizer("gpt2-eot");
    EXPECT_EQ(reads->encode(text), (std::vector<Token>{64, 50256, 50256, 275}));
    EXPECT_EQ(reads->unread_ends(), 0u);
    EXPECT_EQ(counts->unread_ends(), 0u);
    counts->encode(text);
    encode_in_pieces(*counts, text, 1);
    EXPECT_EQ(counts->unread_ends(), 4u);
    EXPECT_EQ(note_of_unread_ends(0), "");
    EXPECT_EQ(
        note_of_unread_ends(4),
        "note: the texts contain <|endoftext|> 4 times, which gpt2 reads as ordinary text; with --tokenizer "
        "gpt2-eot it is the token that ends a text");
    EXPECT_NE(counts->name(), reads->name());
}

// Texts without ASCII or without spaces are cut, too; otherwise one piece would hold the whole text.
TEST(Gpt2Tokenizer, EncodesTextsOfAnyScriptInPieces) {
    for (const std::string_view line : {"港の町は冬に静かである。\n", "港の町は冬に静かである。",
                                        "порт зимой", "a,b;c.", "\xE3\x80\x80港"}) {
        std::string text;
        while (text.size() < 100'000) text += line;
        size_t longest = 0;
        std::vector<Token> tokens;
        gpt2().encode_in_pieces(pieces_of(text, 1000), [&](std::span<const Token> piece) {
            longest = std::max(longest, piece.size());
            tokens.insert(tokens.end(), piece.begin(), piece.end());
        });
        EXPECT_LE(longest, 1100u) << line;
        EXPECT_EQ(tokens, gpt2().encode(text)) << line;
    }
}

// A quadratic merge would take hours: 2^20 letters (2^18 in a checked build) that are a single word. The
// limit leaves room for a sanitizer and a busy machine.
TEST(Gpt2Tokenizer, OneLongWordIsNotQuadratic) {
    const std::clock_t start = std::clock();  // CPU time of this process: other work does not count
    for (const char letter : {'a', '=', ' ', '7', '\xFF'}) {
        const std::string text(size_t{1} << (simt::checked ? 18 : 20), letter);
        EXPECT_EQ(gpt2().decode(gpt2().encode(text)), text);
    }
    EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 60) << "seconds";
}

// The cached words come from the first encoding: a second pass over the text must not differ.
TEST(Gpt2Tokenizer, EncodesTheSameTextTheSameWay) {
    const std::string text = read_file(data_directory() + "/wikitext2_valid.txt");
    const std::unique_ptr<Tokenizer> fresh = make_tokenizer("gpt2");
    EXPECT_EQ(hash(fresh->encode(text)), hash(fresh->encode(text)));
}

TEST(ByteTokenizer, ATokenIsAByte) {
    const std::unique_ptr<Tokenizer> byte = make_tokenizer("byte");
    EXPECT_EQ(byte->vocab_size(), 256);
    EXPECT_EQ(byte->end_of_text(), std::nullopt);
    EXPECT_EQ(byte->encode("a\xFF"), (std::vector<Token>{'a', 255}));
    std::string all;
    for (int i = 0; i < 256; i++) all += static_cast<char>(i);
    EXPECT_EQ(byte->decode(byte->encode(all)), all);
    EXPECT_EQ(byte->encode(""), std::vector<Token>{});
    EXPECT_THROW(byte->token_bytes(256), UsageError);
}

TEST(MakeTokenizer, ATextWithoutAPromptBeginsWithATokenOfTheModel) {
    EXPECT_EQ(gpt2().first_token(), 50256);
    EXPECT_EQ(make_tokenizer("byte")->first_token(), '\n');
    for (const int V : {1, 10, 11})
        EXPECT_EQ(make_tokenizer_for("the model", V, "byte")->first_token(), V > '\n' ? '\n' : 0);
}

TEST(MakeTokenizer, RefusesWhatItCannotRead) {
    EXPECT_TRUE(says(message_of<UsageError>([] { make_tokenizer("bpe"); }),
                     "tokenizer bpe is neither gpt2, gpt2-eot, byte or none nor a file; expected one"));

    const TemporaryFolder folder;
    const std::string encoder = folder / "gpt2_encoder.json", merges = folder / "gpt2_vocab.bpe";
    EXPECT_TRUE(says(message_of<UsageError>([&] { make_tokenizer("gpt2", folder.path()); }),
                     encoder + ": cannot be opened"));

    std::filesystem::copy_file(data_directory() + "/gpt2_encoder.json", encoder);
    std::filesystem::copy_file(data_directory() + "/gpt2_vocab.bpe", merges);
    std::filesystem::permissions(merges, std::filesystem::perms::owner_all);
    std::ofstream(merges, std::ios::app) << "zzzz qqqq\n";
    EXPECT_TRUE(says(message_of<UsageError>([&] { make_tokenizer("gpt2", folder.path()); }),
                     merges + ": 'zzzz' is not in the vocabulary"));

    std::filesystem::resize_file(encoder, 1000);
    EXPECT_TRUE(says(message_of<UsageError>([&] { make_tokenizer("gpt2", folder.path()); }),
                     encoder + ": is not a JSON object"));
}

TEST(MakeTokenizer, NumbersThatDoNotFitAnIntAreNotTakenForOthers) {
    // get<int>() would turn 1.5 into 1 and 2^32 into 0; a conversion of 1e300 is undefined.
    for (const std::string number : {"1.5", "4294967296", "1e300", "-1", "\"1\"", "null", "[[1]]"}) {
        const TemporaryFolder folder;
        const std::string encoder = folder.write("gpt2_encoder.json", "{\"a\": 0, \"b\": " + number + "}");
        folder.write("gpt2_vocab.bpe", "a b\n");
        EXPECT_TRUE(says(message_of<UsageError>([&] { make_tokenizer("gpt2", folder.path()); }),
                         encoder + ": token 'b' has number "));
    }
}

TEST(MakeTokenizer, FindsItsDataThroughTheEnvironment) {
    {
        const Variable data("FLATGPT_DATA", "/nonexistent");
        EXPECT_TRUE(says(message_of<UsageError>([] { make_tokenizer("gpt2"); }),
                         "/nonexistent/gpt2_encoder.json: cannot be opened"));
    }
    EXPECT_EQ(make_tokenizer("gpt2")->vocab_size(), 50257);
}
