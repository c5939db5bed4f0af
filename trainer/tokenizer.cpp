#include "tokenizer.h"

#include <algorithm>
#include <array>

#include "data_directory.h"
#include "error.h"
#include "gpt2_tokenizer.h"

std::vector<uint16_t> Tokenizer::encode(std::string_view text) {
    std::vector<uint16_t> tokens;
    append_tokens(tokens, text);
    return tokens;
}

std::string Tokenizer::decode(std::span<const uint16_t> tokens) const {
    std::string text;
    for (const uint16_t token : tokens) text += token_bytes(token);
    return text;
}

void Tokenizer::encode_in_pieces(std::string_view text, size_t piece_bytes, const std::function<void(std::span<const uint16_t>)>& consume) {
    std::vector<uint16_t> tokens;
    while (!text.empty()) {
        const size_t cut = text.size() > piece_bytes ? safe_cut(text, std::max<size_t>(piece_bytes, 1)) : text.size();
        tokens.clear();
        append_tokens(tokens, text.substr(0, cut));
        consume(tokens);
        text.remove_prefix(cut);
    }
}

namespace {

class ByteTokenizer : public Tokenizer {
public:
    ByteTokenizer() {
        for (int byte = 0; byte < 256; byte++) bytes_[byte] = static_cast<char>(byte);
    }
    std::string_view name() const override { return "byte"; }
    int vocab_size() const override { return 256; }
    std::optional<int> end_of_text() const override { return std::nullopt; }
    std::string_view token_bytes(int id) const override {
        CHECK(id >= 0 && id < 256, "token {} is not a byte (0 to 255)", id);
        return {&bytes_[id], 1};
    }

protected:
    void append_tokens(std::vector<uint16_t>& tokens, std::string_view text) override {
        for (const char character : text) tokens.push_back(static_cast<unsigned char>(character));
    }
    size_t safe_cut(std::string_view, size_t from) const override { return from; }

private:
    std::array<char, 256> bytes_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) { return make_tokenizer(name, data_directory()); }

std::unique_ptr<Tokenizer> make_tokenizer_for(const std::string& model, int V, const std::string& name) {
    std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(name);
    const int tokens = tokenizer->vocab_size(), padded = (tokens + 127) / 128 * 128, least = name == "byte" ? 1 : tokens;
    CHECK(V >= least && V <= padded, "{} has a vocabulary of {}, which the {} tokens of --tokenizer {} do not fit; expected {} to {}", model, V,
          tokens, name, least, padded);
    return tokenizer;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& directory) {
    CHECK(name == "gpt2" || name == "byte", "tokenizer '{}' is not known; choose gpt2 or byte", name);
    if (name == "byte") return std::make_unique<ByteTokenizer>();
    return std::make_unique<Gpt2Tokenizer>(directory + "/gpt2_encoder.json", directory + "/gpt2_vocab.bpe");
}
