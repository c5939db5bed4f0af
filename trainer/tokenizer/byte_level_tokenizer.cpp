#include "trainer/tokenizer/byte_level_tokenizer.h"

#include <algorithm>

#include "system/error.h"
#include "system/json_text.h"
#include "system/unicode_nfc.h"
#include "trainer/tokenizer/characters.h"

namespace {

// UTF-8 of a character below U+0800.
std::string utf8(int character) {
    if (character < 0x80) return {static_cast<char>(character)};
    return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

// Vocabulary files write a printable byte as itself, and the others as U+0100 and on, in the order of the
// bytes.
std::array<std::string, 256> make_byte_characters() {
    std::array<std::string, 256> characters;
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        characters[byte] = utf8(printable ? byte : next++);
    }
    return characters;
}

const std::array<std::string, 256>& byte_characters() {
    static const std::array<std::string, 256> characters = make_byte_characters();
    return characters;
}

class ByteDecoder {
public:
    ByteDecoder() {
        for (int byte = 0; byte < 256; byte++) bytes_[byte_characters()[byte]] = static_cast<char>(byte);
    }
    // The bytes of a token of the vocabulary file; nothing if it contains any other character.
    std::optional<std::string> decode(std::string_view token) const {
        std::string bytes;
        for (size_t i = 0, length; i < token.size(); i += length) {
            length = static_cast<unsigned char>(token[i]) < 0x80 ? 1 : 2;
            const auto found = bytes_.find(std::string(token.substr(i, length)));
            if (found == bytes_.end()) return std::nullopt;
            bytes += found->second;
        }
        return bytes;
    }

private:
    std::unordered_map<std::string, char> bytes_;
};

// The bytes of all tokens that stand for bytes.
std::unordered_map<std::string, Token> words_of(const ByteLevelVocabulary& vocabulary) {
    const ByteDecoder decoder;
    std::unordered_map<std::string, Token> words;
    for (const auto& [token, id] : vocabulary.tokens)
        if (const auto bytes = decoder.decode(token)) words[*bytes] = static_cast<Token>(id);
    return words;
}

BytePairEncoding encoding_of(const ByteLevelVocabulary& vocabulary) {
    std::array<Token, 256> byte_tokens = {};
    for (int byte = 0; byte < 256; byte++) {
        const auto found = vocabulary.tokens.find(byte_characters()[byte]);
        CHECK(found != vocabulary.tokens.end(),
              "{}: has no token for byte 0x{:02x}; expected one for each of the 256, as Hugging Face's "
              "BpeTrainer makes with initial_alphabet=ByteLevel.alphabet()",
              vocabulary.file, byte);
        byte_tokens[byte] = static_cast<Token>(found->second);
    }
    const auto token = [&](const std::string& text) {
        const auto found = vocabulary.tokens.find(text);
        CHECK(found != vocabulary.tokens.end(),
              "{}: '{}' is not in the vocabulary; the merges and the vocabulary must belong together",
              vocabulary.merges_file, text);
        return static_cast<Token>(found->second);
    };
    std::vector<BytePairEncoding::Merge> merges;
    for (const auto& [left, right] : vocabulary.merges)
        merges.push_back({token(left), token(right), token(left + right)});
    BytePairEncoding encoding(byte_tokens, merges);
    if (vocabulary.ignores_merges) encoding.set_whole_words(words_of(vocabulary));
    return encoding;
}

// True for characters that normal form C leaves as they are, whatever stands beside them, if that is one of
// these characters too. Most text consists of them.
bool is_plain(char32_t code) {
    return code < 0x300 || (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3041 && code <= 0x3096) ||
           (code >= 0x30A1 && code <= 0x30FA) || (code >= 0x3001 && code <= 0x3029) ||
           (code >= 0xFF01 && code <= 0xFFEE) || (code >= 0xAC00 && code <= 0xD7A3) ||
           (code >= 0x2010 && code <= 0x205E) || (code >= 0x400 && code <= 0x482) ||
           (code >= 0x1F300 && code <= 0x1FAFF);
}

std::string in_nfc(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const CodePoint point = code_point_at(text, at);
        if (point.bytes > 0 && !is_plain(point.code)) return normalized_nfc(text);
        at += std::max<size_t>(point.bytes, 1);
    }
    return std::string(text);
}

}  // namespace

std::string printable_bytes(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) text += byte_characters()[static_cast<unsigned char>(byte)];
    return text;
}

ByteLevelTokenizer::ByteLevelTokenizer(std::string name, const ByteLevelVocabulary& vocabulary,
                                       std::vector<TextFile> files, std::string former_name)
    : name_(std::move(name)),
      former_name_(std::move(former_name)),
      end_of_text_(vocabulary.end_of_text),
      begin_of_text_(vocabulary.own_ids.begin ? vocabulary.own_ids.begin : vocabulary.begin_of_text),
      own_ids_(vocabulary.own_ids),
      before_(vocabulary.before),
      after_(vocabulary.after),
      splitter_(vocabulary.steps),
      prefix_space_(vocabulary.prefix_space),
      nfc_(vocabulary.nfc),
      encoding_(encoding_of(vocabulary)),
      added_(vocabulary.added, vocabulary.nfc ? in_nfc : nullptr),
      counts_added_(vocabulary.counts_added),
      files_(std::move(files)) {
    const ByteDecoder decoder;
    std::unordered_map<std::string, int> added;
    for (const AddedToken& token : vocabulary.added) {
        added[token.content] = token.id;
        if (token.special) special_.insert(token.id);
    }
    for (const std::optional<int>& id : {end_of_text_, begin_of_text_})
        if (id) special_.insert(*id);
    // An added token need not consist of the characters that stand for bytes.
    for (const auto& [token, id] : vocabulary.tokens)
        set_bytes(vocabulary.file, token, id,
                  decoder.decode(token).value_or(added.contains(token) ? token : ""));
    for (const auto& [token, id] : added)
        if (!vocabulary.tokens.contains(token)) set_bytes(vocabulary.file, token, id, token);
    for (const auto* around : {&before_, &after_}) {
        for (const int id : *around)
            CHECK(id < vocab_size(),
                  "{}: its post_processor has the token number {}; expected one of the {} tokens",
                  vocabulary.file, id, vocab_size());
    }
    for (const Token token : encoding_.all_tokens())
        least_vocabulary_ = std::max(least_vocabulary_, static_cast<int>(token) + 1);
}

void ByteLevelTokenizer::set_bytes(const std::string& file, const std::string& token, int id,
                                   const std::string& bytes) {
    CHECK(id >= 0 && id < max_vocab_size, "{}: token '{}' has number {}, expected a whole number below {}",
          file, token, id, max_vocab_size);
    if (token_bytes_.size() <= static_cast<size_t>(id)) token_bytes_.resize(static_cast<size_t>(id) + 1);
    std::string& own = token_bytes_[static_cast<size_t>(id)];
    CHECK(!bytes.empty() && own.empty(),
          "{}: token '{}' with number {} is not part of a byte-level vocabulary", file, token, id);
    own = bytes;
}

std::string_view ByteLevelTokenizer::token_bytes(int id) const {
    CHECK(id >= 0 && id < vocab_size(), "token {} is outside the tokenizer's vocabulary of {}", id,
          vocab_size());
    return token_bytes_[static_cast<size_t>(id)];
}

std::vector<std::pair<int, int>> ByteLevelTokenizer::merges() const {
    std::vector<std::pair<int, int>> pairs;
    for (const auto& [left, right, merged] : encoding_.merges()) pairs.emplace_back(left, right);
    return pairs;
}

std::vector<Token> ByteLevelTokenizer::encode_prompt(std::string_view text) {
    std::vector<Token> tokens(before_.begin(), before_.end());
    append_tokens(tokens, text, true);
    tokens.insert(tokens.end(), after_.begin(), after_.end());
    return tokens;
}

Token ByteLevelTokenizer::in_model(const AddedToken& token) const {
    CHECK(token.id < model_vocabulary(),
          "a text contains the added token {} with the number {}, but the model has a vocabulary of {}; "
          "expected texts without it, or a model with a row for it",
          shown(token.content), token.id, model_vocabulary());
    return static_cast<Token>(token.id);
}

// Each piece of text between two added tokens is split into words by itself.
void ByteLevelTokenizer::append_tokens(std::vector<Token>& tokens, std::string_view text, bool begins) {
    if (added_.empty()) return append_words(tokens, nfc_ ? std::string_view(in_nfc(text)) : text, begins);
    const char* const start = text.data();
    added_.split(text, [&](std::string_view piece, const AddedToken* token) {
        if (!token) {
            if (!counts_added_) append_words(tokens, piece, begins || piece.data() != start);
        } else if (counts_added_) {
            counted_++;
        } else {
            tokens.push_back(in_model(*token));
        }
    });
    if (counts_added_) append_words(tokens, text, begins);
}

void ByteLevelTokenizer::append_words(std::vector<Token>& tokens, std::string_view text, bool begins) {
    if (text.empty()) return;
    std::string with_space;
    if (prefix_space_ && begins && text.front() != ' ') text = with_space.append(" ").append(text);
    BytePairEncoding::Output output(tokens);
    splitter_.split(text, [&](std::string_view word) { encoding_.encode(output, word); });
}

// True if a word ends at a position for certain, also after the text is normalized. A character there must
// not combine with the one before it, and the class of that one may change. A space ends every word, and a
// newline that is an end of a word stays one.
bool ByteLevelTokenizer::can_cut(std::string_view text, size_t at) const {
    if (!splitter_.word_ends_at(text, at) || !(added_.empty() || added_.can_cut(text, at))) return false;
    if (!nfc_ || text[at] == ' ') return true;
    const CodePoint next = code_point_at(text, at);
    return (text[at - 1] == '\n' || text[at - 1] == '\r') && next.bytes > 0 && is_plain(next.code);
}

size_t ByteLevelTokenizer::last_cut(std::string_view text, size_t seen) const {
    // Behind a cut, a whole character and the longest added token must be in sight.
    const size_t ahead = std::max<size_t>(4, added_.longest());
    if (text.size() <= ahead) return 0;
    for (size_t cut = text.size() - ahead; cut > 0 && cut + ahead > seen; cut--) {
        if (can_cut(text, cut)) return cut;
    }
    return 0;
}
