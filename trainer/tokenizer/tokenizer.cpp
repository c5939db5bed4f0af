#include "trainer/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <unordered_map>

#include "system/data_directory.h"
#include "system/error.h"
#include "system/file_access.h"
#include "trainer/tokenizer/tokenizer_files.h"

SpecialIds Tokenizer::own_ids() const {
    SpecialIds ids;
    if (const std::optional<int> end = end_of_text()) ids.ends = {*end};
    return ids;
}

void Tokenizer::set_model(const ModelIds& ids, int V) {
    model_ids_ = ids;
    model_vocabulary_ = V;
}

std::vector<int> Tokenizer::ends() const {
    return first_known({model_ids_.generation, model_ids_.config, own_ids()},
                       std::min(vocab_size(), model_vocabulary_))
        .ends;
}

bool Tokenizer::ends_text(int token) const {
    const std::vector<int> all = ends();
    return std::find(all.begin(), all.end(), token) != all.end();
}

int Tokenizer::first_token() const {
    const int token = end_of_text().value_or('\n');
    return token < std::min(vocab_size(), model_vocabulary_) ? token : 0;
}

std::vector<Token> Tokenizer::encode(std::string_view text) {
    std::vector<Token> tokens;
    append_tokens(tokens, text, true);
    return tokens;
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
    std::string text;
    for (const Token token : tokens) text += token_bytes(static_cast<int>(token));
    return text;
}

void Tokenizer::encode_in_pieces(const std::function<bool(std::string& text)>& more,
                                 const std::function<void(std::span<const Token>)>& consume) {
    std::string text;
    std::vector<Token> tokens;
    size_t seen = 0;
    for (bool begins = true, ends = false; !ends;) {
        ends = !more(text);
        const size_t cut = ends ? text.size() : last_cut(text, seen);
        if (cut > 0) {
            tokens.clear();
            append_tokens(tokens, std::string_view(text).substr(0, cut), begins);
            consume(tokens);
            text.erase(0, cut);
            begins = false;
        }
        seen = text.size();
    }
}

std::string note_of_unread_ends(size_t count) {
    if (count == 0) return "";
    return fmt::format(
        "note: the texts contain <|endoftext|> {} time{}, which gpt2 reads as ordinary text; with "
        "--tokenizer "
        "gpt2-eot it is the token that ends a text",
        count, count == 1 ? "" : "s");
}

namespace {

// True unless a model's folder holds a tokenizer with other tokens, for which its numbers of special tokens
// are meant.
bool has_tokens_of(const std::string& model, const Tokenizer& tokenizer) {
    const std::string file = tokenizer_in(model);
    if (file.empty()) return true;
    std::unique_ptr<Tokenizer> own;
    try {
        own = make_tokenizer(file);
    } catch (const UsageError&) { return false; }  // damaged, or of another kind
    bool same = own->vocab_size() == tokenizer.vocab_size();
    for (int id = 0; same && id < tokenizer.vocab_size(); id++)
        same = own->token_bytes(id) == tokenizer.token_bytes(id);
    return same;
}

// The folder of a tokenizer that is not a word.
std::string folder_of(const std::string& name) {
    return is_folder(name) ? name : std::filesystem::path(name).parent_path().string();
}

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
    void append_tokens(std::vector<Token>& tokens, std::string_view text, bool) override {
        for (const char character : text) tokens.push_back(static_cast<unsigned char>(character));
    }
    size_t last_cut(std::string_view text, size_t) const override { return text.size(); }

private:
    std::array<char, 256> bytes_;
};

class NoTokenizer : public Tokenizer {
public:
    std::string_view name() const override { return "none"; }
    int vocab_size() const override { return max_vocab_size; }
    std::optional<int> end_of_text() const override { return std::nullopt; }
    std::string_view token_bytes(int id) const override {
        CHECK(id >= 0 && id < max_vocab_size, "token {}; expected 0 to {}", id, max_vocab_size - 1);
        std::string& number = numbers_[id];
        if (number.empty()) number = std::to_string(id) + " ";
        return number;
    }

protected:
    void append_tokens(std::vector<Token>&, std::string_view text, bool) override {
        CHECK(text.empty(),
              "there is text, but --tokenizer none tokenizes no text; expected token shards, or "
              "--tokenizer gpt2, byte or a tokenizer.json");
    }
    size_t last_cut(std::string_view text, size_t) const override { return text.size(); }

private:
    mutable std::unordered_map<int, std::string> numbers_;  // of the tokens that were asked for
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
    return make_tokenizer(name, data_directory());
}

std::unique_ptr<Tokenizer> make_tokenizer_for(const std::string& model, int V, const std::string& name) {
    const ModelIds of_model = is_folder(model) ? read_model_ids(model) : ModelIds{};
    std::unique_ptr<Tokenizer> tokenizer;
    try {
        tokenizer = make_tokenizer(name);
    } catch (const UsageError& error) {
        if (is_tokenizer_word(name)) throw;
        throw UsageError(fmt::format("{}; another one can be named by --tokenizer", error.what()));
    }
    const bool is_file = !is_tokenizer_word(name);
    const ModelIds own = is_file ? read_model_ids(folder_of(name)) : ModelIds{};
    const bool speaks = !own.say_nothing() || (is_file && !tokenizer->own_ids().say_nothing());
    const bool models_first = !of_model.say_nothing() && (!speaks || has_tokens_of(model, *tokenizer));
    tokenizer->set_model(models_first ? of_model : own, V);
    if (name == "none") return tokenizer;
    const bool is_own = tokenizer->name().starts_with("bpe-");
    const int tokens = tokenizer->vocab_size(), padded = (tokens + 127) / 128 * 128,
              least = tokenizer->name() == "byte" ? 1
                      : is_own                    ? tokenizer->least_vocabulary()
                                                  : tokens;
    const bool belongs = is_own && V > tokens && V == own.vocab_size;
    CHECK((V >= least && V <= padded) || belongs,
          "{} has a vocabulary of {}, which the {} tokens of --tokenizer {} do not fit; expected {} to {}, "
          "or, for "
          "token shards alone, --tokenizer none",
          model, V, tokens, name, least, padded);
    return tokenizer;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& directory) {
    if (name == "byte") return std::make_unique<ByteTokenizer>();
    if (name == "gpt2" || name == "gpt2-eot")
        return read_gpt2_tokenizer(name, directory + "/gpt2_encoder.json", directory + "/gpt2_vocab.bpe");
    if (name == "none") return std::make_unique<NoTokenizer>();
    CHECK(is_there(name),
          "tokenizer {} is neither gpt2, gpt2-eot, byte or none nor a file; expected one of them, or a "
          "tokenizer.json",
          name);
    if (!is_folder(name)) return read_tokenizer_file(name);
    const std::string file = tokenizer_in(name);
    CHECK(!file.empty(), "tokenizer {}: the folder has neither a tokenizer.json nor a vocab.json", name);
    return read_tokenizer_file(file);
}

bool is_tokenizer_word(const std::string& name) {
    return std::find(tokenizer_words.begin(), tokenizer_words.end(), name) != tokenizer_words.end();
}

std::string default_tokenizer(int V) {
    if (V <= 256) return "byte";
    return V >= gpt2_vocab_size ? "gpt2" : "none";
}
