// gpt2_tokenizer.h: GPT-2's tokenizer from the vocabulary files that OpenAI published; make_tokenizer("gpt2") makes one.
#pragma once
#include <string>
#include <unordered_map>

#include "byte_pair_encoding.h"
#include "tokenizer.h"

// The printable character, in UTF-8, as which vocabulary files write a byte (0 to 255).
std::string character_of_byte(int byte);

class Gpt2Tokenizer : public Tokenizer {
public:
    // encoder_path: {token: id} as JSON, bytes written as printable characters; merges_path: "left right" lines in order of rank.
    // UsageError, naming the file, if one is missing or is not that.
    Gpt2Tokenizer(const std::string& encoder_path, const std::string& merges_path);

    std::string_view name() const override { return "gpt2"; }
    int vocab_size() const override { return static_cast<int>(token_bytes_.size()); }
    std::optional<int> end_of_text() const override { return end_of_text_; }
    std::string_view token_bytes(int id) const override;

protected:
    void append_tokens(std::vector<uint16_t>& tokens, std::string_view text) override;
    size_t safe_cut(std::string_view text, size_t from) const override;

private:
    using Vocabulary = std::unordered_map<std::string, int>;
    void read_vocabulary(const Vocabulary& vocabulary, const std::string& path);
    static BytePairEncoding read_merges(const Vocabulary& vocabulary, const std::string& path);

    Gpt2Tokenizer(const Vocabulary& vocabulary, const std::string& encoder_path, const std::string& merges_path);

    std::vector<std::string> token_bytes_;
    int end_of_text_ = 0;
    BytePairEncoding encoding_;
};
