// byte_level_tokenizer.h: byte-level byte-pair encoding: GPT-2's tokenizer and others of its kind.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/tokenizer/byte_pair_encoding.h"
#include "trainer/tokenizer/tokenizer.h"

// Bytes as vocabulary files write them: a printable character in UTF-8 for each.
std::string printable_bytes(std::string_view bytes);

// How digits are separated before a text is split into words: not at all, each one by itself, or runs of
// digits from other characters.
enum class Digits { nothing, each_other, other_characters };

// A tokenizer as its files describe it.
struct ByteLevelVocabulary {
    std::string file;  // path for error messages
    // tokens and their numbers, with bytes as printable_bytes writes them
    std::unordered_map<std::string, int> tokens;
    std::vector<std::pair<std::string, std::string>> merges;  // in the order in which they are tried
    std::string merges_file;                                  // path for errors in merges
    // spelled as they are; text never encodes to them
    std::unordered_map<std::string, int> special_tokens{};
    std::string end_of_text{};  // a token or a special token; empty: none
    Digits digits = Digits::nothing;
    bool prefix_space = false;  // a text that does not begin with a space gets one
};

class ByteLevelTokenizer : public Tokenizer {
public:
    // Throws a UsageError that names the file if the vocabulary lacks a byte, a merge's tokens or the end of
    // text, or if two tokens have one number. files() returns `files`.
    ByteLevelTokenizer(std::string name, const ByteLevelVocabulary& vocabulary,
                       std::vector<TextFile> files = {});

    std::string_view name() const override { return name_; }
    int vocab_size() const override { return static_cast<int>(token_bytes_.size()); }
    std::optional<int> end_of_text() const override { return end_of_text_; }
    std::string_view token_bytes(int id) const override;
    std::vector<std::pair<int, int>> merges() const override;
    std::span<const TextFile> files() const override { return files_; }

protected:
    void append_tokens(std::vector<uint16_t>& tokens, std::string_view text) override;
    size_t safe_cut(std::string_view text, size_t from) const override;

private:
    void set_bytes(const std::string& file, const std::string& token, int id, const std::string& bytes);

    std::string name_;
    std::vector<std::string> token_bytes_;  // empty for a number without a token
    std::optional<int> end_of_text_;
    Digits digits_;
    bool prefix_space_;
    BytePairEncoding encoding_;
    std::vector<TextFile> files_;
};
