#include "trainer/tokenizer/byte_level_tokenizer.h"

#include <algorithm>

#include "system/error.h"
#include "system/json_text.h"
#include "trainer/tokenizer/word_splitter.h"

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

BytePairEncoding encoding_of(const ByteLevelVocabulary& vocabulary) {
    std::array<uint16_t, 256> byte_tokens;
    for (int byte = 0; byte < 256; byte++) {
        const auto found = vocabulary.tokens.find(byte_characters()[byte]);
        CHECK(found != vocabulary.tokens.end(),
              "{}: has no token for byte 0x{:02x}; expected one for each of the 256, as Hugging Face's "
              "BpeTrainer makes with initial_alphabet=ByteLevel.alphabet()",
              vocabulary.file, byte);
        byte_tokens[byte] = static_cast<uint16_t>(found->second);
    }
    const auto token = [&](const std::string& text) {
        const auto found = vocabulary.tokens.find(text);
        CHECK(found != vocabulary.tokens.end(),
              "{}: '{}' is not in the vocabulary; the merges and the vocabulary must belong together",
              vocabulary.merges_file, text);
        return static_cast<uint16_t>(found->second);
    };
    CHECK(vocabulary.merges.size() <= BytePairEncoding::max_merges, "{}: has {} merges; expected at most {}",
          vocabulary.merges_file, vocabulary.merges.size(), BytePairEncoding::max_merges);
    std::vector<BytePairEncoding::Merge> merges;
    for (const auto& [left, right] : vocabulary.merges)
        merges.push_back({token(left), token(right), token(left + right)});
    return BytePairEncoding(byte_tokens, merges);
}

// Calls consume(piece) for the pieces into which a text is cut at its digits. Together they are the text.
template <class Consume>
void cut_at_digits(std::string_view text, Digits digits, const Consume& consume) {
    size_t begin = 0;
    bool in_number = false;
    for (size_t at = 0, length; at < text.size(); at += length) {
        const auto [bytes, number] = first_character(text.substr(at));
        length = bytes;
        const bool cut = number != in_number || (number && digits == Digits::each_other);
        if (cut && at > begin) {
            consume(text.substr(begin, at - begin));
            begin = at;
        }
        in_number = number;
    }
    if (begin < text.size()) consume(text.substr(begin));
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
      own_ids_(vocabulary.own_ids),
      before_(vocabulary.before),
      after_(vocabulary.after),
      digits_(vocabulary.digits),
      prefix_space_(vocabulary.prefix_space),
      encoding_(encoding_of(vocabulary)),
      added_(vocabulary.added),
      counts_added_(vocabulary.counts_added),
      files_(std::move(files)) {
    const ByteDecoder decoder;
    std::unordered_map<std::string, int> added;
    for (const AddedToken& token : vocabulary.added) added[token.content] = token.id;
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
    for (const uint16_t token : encoding_.all_tokens())
        least_vocabulary_ = std::max(least_vocabulary_, token + 1);
}

void ByteLevelTokenizer::set_bytes(const std::string& file, const std::string& token, int id,
                                   const std::string& bytes) {
    CHECK(id >= 0 && id < max_vocab_size, "{}: token '{}' has number {}, expected a whole number below {}",
          file, token, id, max_vocab_size);
    if (token_bytes_.size() <= static_cast<size_t>(id)) token_bytes_.resize(static_cast<size_t>(id) + 1);
    std::string& place = token_bytes_[static_cast<size_t>(id)];
    CHECK(!bytes.empty() && place.empty(),
          "{}: token '{}' with number {} is not part of a byte-level vocabulary", file, token, id);
    place = bytes;
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

std::vector<uint16_t> ByteLevelTokenizer::encode_prompt(std::string_view text) {
    std::vector<uint16_t> tokens(before_.begin(), before_.end());
    append_tokens(tokens, text, true);
    tokens.insert(tokens.end(), after_.begin(), after_.end());
    return tokens;
}

uint16_t ByteLevelTokenizer::in_model(const AddedToken& token) const {
    CHECK(token.id < model_vocabulary(),
          "a text contains the added token {} with the number {}, but the model has a vocabulary of {}; "
          "expected texts without it, or a model with a row for it",
          shown(token.content), token.id, model_vocabulary());
    return static_cast<uint16_t>(token.id);
}

// Each piece of text between two added tokens is split into words by itself.
void ByteLevelTokenizer::append_tokens(std::vector<uint16_t>& tokens, std::string_view text, bool begins) {
    if (added_.empty()) return append_words(tokens, text, begins);
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

void ByteLevelTokenizer::append_words(std::vector<uint16_t>& tokens, std::string_view text, bool begins) {
    if (text.empty()) return;
    std::string with_space;
    if (prefix_space_ && begins && text.front() != ' ') text = with_space.append(" ").append(text);
    const auto encode = [&](std::string_view piece) {
        split_words(piece, [&](std::string_view word) { encoding_.encode(tokens, word); });
    };
    if (digits_ == Digits::nothing) encode(text);
    else cut_at_digits(text, digits_, encode);
}

size_t ByteLevelTokenizer::last_cut(std::string_view text, size_t seen) const {
    // Behind a cut, a whole character and the longest added token must be in sight.
    const size_t ahead = std::max<size_t>(4, added_.longest());
    if (text.size() <= ahead) return 0;
    for (size_t cut = text.size() - ahead; cut > 0 && cut + ahead > seen; cut--) {
        if (word_ends_at(text, cut) && (added_.empty() || added_.can_cut(text, cut))) return cut;
    }
    return 0;
}
