#include "trainer/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>

#include "system/data_directory.h"
#include "system/error.h"
#include "system/file_access.h"
#include "trainer/tokenizer/tokenizer_files.h"

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

void Tokenizer::encode_in_pieces(std::string_view text, size_t piece_bytes,
                                 const std::function<void(std::span<const uint16_t>)>& consume) {
    std::vector<uint16_t> tokens;
    while (!text.empty()) {
        const size_t cut =
            text.size() > piece_bytes ? safe_cut(text, std::max<size_t>(piece_bytes, 1)) : text.size();
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

class NoTokenizer : public Tokenizer {
public:
    NoTokenizer() {
        for (int id = 0; id < max_vocab_size; id++) numbers_.push_back(std::to_string(id) + " ");
    }
    std::string_view name() const override { return "none"; }
    int vocab_size() const override { return max_vocab_size; }
    std::optional<int> end_of_text() const override { return std::nullopt; }
    std::string_view token_bytes(int id) const override {
        CHECK(id >= 0 && id < max_vocab_size, "token {} has more than 16 bits", id);
        return numbers_[static_cast<size_t>(id)];
    }

protected:
    void append_tokens(std::vector<uint16_t>&, std::string_view text) override {
        CHECK(text.empty(),
              "there is text, of which --tokenizer none makes no tokens; expected token shards, or "
              "--tokenizer gpt2, byte or a tokenizer.json");
    }
    size_t safe_cut(std::string_view text, size_t) const override { return text.size(); }

private:
    std::vector<std::string> numbers_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
    return make_tokenizer(name, data_directory());
}

std::unique_ptr<Tokenizer> make_tokenizer_for(const std::string& model, int V, const std::string& name) {
    std::unique_ptr<Tokenizer> tokenizer;
    try {
        tokenizer = make_tokenizer(name);
    } catch (const UsageError& error) {
        if (is_tokenizer_word(name)) throw;
        throw UsageError(fmt::format("{}; another one can be named by --tokenizer", error.what()));
    }
    if (name == "none") return tokenizer;
    const int tokens = tokenizer->vocab_size(), padded = (tokens + 127) / 128 * 128,
              least = tokenizer->name() == "byte" ? 1 : tokens;
    CHECK(V >= least && V <= padded,
          "{} has a vocabulary of {}, which the {} tokens of --tokenizer {} do not fit; expected {} to {}",
          model, V, tokens, name, least, padded);
    return tokenizer;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& directory) {
    if (name == "byte") return std::make_unique<ByteTokenizer>();
    if (name == "gpt2")
        return read_gpt2_tokenizer(directory + "/gpt2_encoder.json", directory + "/gpt2_vocab.bpe");
    if (name == "none") return std::make_unique<NoTokenizer>();
    CHECK(is_there(name),
          "tokenizer {} is neither gpt2, byte or none nor a file; expected one of them, or a tokenizer.json",
          name);
    return read_tokenizer_json(is_folder(name) ? name + "/tokenizer.json" : name);
}

bool is_tokenizer_word(const std::string& name) {
    return std::find(tokenizer_words.begin(), tokenizer_words.end(), name) != tokenizer_words.end();
}

std::string default_tokenizer(int V) {
    if (V <= 256) return "byte";
    return V >= gpt2_vocab_size ? "gpt2" : "none";
}
