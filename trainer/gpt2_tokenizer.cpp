#include "gpt2_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "error.h"
#include "json_text.h"
#include "mapped_file.h"
#include "word_splitter.h"

namespace {

// The vocabulary files write a byte as a printable character: itself where it is one, else U+0100 and on, in the order of the bytes.
std::array<int, 256> character_of_bytes() {
    std::array<int, 256> characters;
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        characters[byte] = printable ? byte : next++;
    }
    return characters;
}

// UTF-8 of a character below U+0800.
std::string utf8(int character) {
    if (character < 0x80) return {static_cast<char>(character)};
    return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

class ByteDecoder {
public:
    ByteDecoder() {
        const std::array<int, 256> characters = character_of_bytes();
        for (int byte = 0; byte < 256; byte++) bytes_[utf8(characters[byte])] = static_cast<char>(byte);
    }
    // The bytes that a token of the vocabulary file stands for; nothing if it holds another character.
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

std::unordered_map<std::string, int> read_encoder(const std::string& path) {
    const nlohmann::json root = parse_json(MappedFile(path).text());
    CHECK(root.is_object(), "{}: is not a JSON object of tokens and their numbers", path);
    std::unordered_map<std::string, int> vocabulary;
    for (const auto& [token, id] : root.items()) {
        // Not get<int>(): it would take 1.5 for 1 and 2^32 for 0.
        const bool is_number = id.is_number_unsigned() && id.get<uint64_t>() < root.size();
        CHECK(is_number, "{}: token '{}' has number {}, expected a whole number below {}", path, token, shown(id), root.size());
        vocabulary.emplace(token, id.get<int>());
    }
    return vocabulary;
}

}  // namespace

std::string character_of_byte(int byte) { return utf8(character_of_bytes().at(static_cast<size_t>(byte))); }

Gpt2Tokenizer::Gpt2Tokenizer(const std::string& encoder_path, const std::string& merges_path)
    : Gpt2Tokenizer(read_encoder(encoder_path), encoder_path, merges_path) {}

Gpt2Tokenizer::Gpt2Tokenizer(const Vocabulary& vocabulary, const std::string& encoder_path, const std::string& merges_path)
    : encoding_(read_merges(vocabulary, merges_path)) {
    read_vocabulary(vocabulary, encoder_path);
}

void Gpt2Tokenizer::read_vocabulary(const Vocabulary& vocabulary, const std::string& path) {
    static constexpr char end_of_text[] = "<|endoftext|>";
    CHECK(vocabulary.contains(end_of_text), "{}: has no token {}", path, end_of_text);
    end_of_text_ = vocabulary.at(end_of_text);
    const ByteDecoder decoder;
    token_bytes_.resize(vocabulary.size());
    for (const auto& [token, id] : vocabulary) {
        const std::optional<std::string> bytes = decoder.decode(token);
        CHECK(bytes && !bytes->empty() && id >= 0 && id < Gpt2Tokenizer::vocab_size() && token_bytes_[id].empty(),
              "{}: token '{}' with number {} is not part of a byte-level vocabulary of {}", path, token, id, Gpt2Tokenizer::vocab_size());
        token_bytes_[id] = *bytes;
    }
}

BytePairEncoding Gpt2Tokenizer::read_merges(const Vocabulary& vocabulary, const std::string& path) {
    CHECK(vocabulary.size() <= 65536, "{}: a vocabulary of {} tokens does not fit 16 bits", path, vocabulary.size());
    const auto token = [&](const std::string& text) {
        const auto found = vocabulary.find(text);
        CHECK(found != vocabulary.end(), "{}: '{}' is not in the vocabulary; the two vocabulary files must belong together", path, text);
        return static_cast<uint16_t>(found->second);
    };
    std::array<uint16_t, 256> byte_tokens;
    const std::array<int, 256> characters = character_of_bytes();
    for (int byte = 0; byte < 256; byte++) byte_tokens[byte] = token(utf8(characters[byte]));

    const std::string file = MappedFile(path).text();
    std::vector<BytePairEncoding::Merge> merges;
    for (std::string_view rest = file; !rest.empty();) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (line.empty() || line.starts_with("#version")) continue;
        const size_t space = line.find(' ');
        CHECK(space != line.npos, "{}: '{}' is not a merge of two tokens", path, line);
        const std::string left(line.substr(0, space)), right(line.substr(space + 1));
        merges.push_back({token(left), token(right), token(left + right)});
        // The encoder takes the lowest token first: that is the order of the merges only if they are numbered in it.
        const int before = merges.size() > 1 ? merges[merges.size() - 2].merged : 0;
        CHECK(merges.back().merged > before, "{}: the merge '{}' is not numbered in the order of the merges", path, line);
    }
    CHECK(!merges.empty(), "{}: holds no merges", path);
    return BytePairEncoding(byte_tokens, merges);
}

std::string_view Gpt2Tokenizer::token_bytes(int id) const {
    CHECK(id >= 0 && id < vocab_size(), "token {} is outside GPT-2's vocabulary of {}", id, vocab_size());
    return token_bytes_[id];
}

void Gpt2Tokenizer::append_tokens(std::vector<uint16_t>& tokens, std::string_view text) {
    split_words(text, [&](std::string_view word) { encoding_.encode(tokens, word); });
}

// Between a visible ASCII character and a space or newline a word always ends: no alternative of the pattern goes from the one to
// the other, and the only lookahead, (?!\S), looks past white space, which a visible character ended before.
size_t Gpt2Tokenizer::safe_cut(std::string_view text, size_t from) const {
    for (size_t cut = from; cut < text.size(); cut++) {
        const char before = text[cut - 1], after = text[cut];
        if (before > ' ' && before < 0x7F && (after == ' ' || after == '\n')) return cut;
    }
    return text.size();
}
