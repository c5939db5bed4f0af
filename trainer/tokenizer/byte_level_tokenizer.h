// byte_level_tokenizer.h: byte-level byte-pair encoding: GPT-2's tokenizer and others of its kind.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/byte_pair_encoding.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/word_splitter.h"

// Bytes as vocabulary files write them: a printable character in UTF-8 for each.
std::string printable_bytes(std::string_view bytes);

// A tokenizer as its files describe it.
struct ByteLevelVocabulary {
    std::string file;  // path for error messages
    // tokens and their numbers, with bytes as printable_bytes writes them
    std::unordered_map<std::string, int> tokens;
    std::vector<std::pair<std::string, std::string>> merges;  // in the order in which they are tried
    std::string merges_file;                                  // path for errors in merges
    std::vector<AddedToken> added{};                          // spelled as they are
    bool counts_added = false;           // added tokens in a text are counted and stay ordinary text
    std::optional<int> end_of_text{};    // the token between two texts
    std::optional<int> begin_of_text{};  // if own_ids has no begin
    SpecialIds own_ids{};
    std::vector<int> before{}, after{};  // tokens that the post-processor puts around a prompt
    std::vector<SplitPattern> steps = {SplitPattern::gpt2};  // that split a text into words
    bool prefix_space = false;    // a text that does not begin with a space gets one
    bool nfc = false;             // texts are normalized (unicode_nfc.h); not with prefix_space
    bool ignores_merges = false;  // a word of the vocabulary is that token, whatever the merges say
};

class ByteLevelTokenizer : public Tokenizer {
public:
    // Throws a UsageError that names the file if the vocabulary lacks a byte or a merge's tokens, or if two
    // tokens have one number. files() returns `files`.
    ByteLevelTokenizer(std::string name, const ByteLevelVocabulary& vocabulary,
                       std::vector<TextFile> files = {}, std::string former_name = "");

    std::string_view name() const override { return name_; }
    std::string_view former_name() const override { return former_name_.empty() ? name_ : former_name_; }
    int vocab_size() const override { return static_cast<int>(token_bytes_.size()); }
    std::optional<int> end_of_text() const override { return end_of_text_; }
    std::optional<int> begin_of_text() const override { return begin_of_text_; }
    int least_vocabulary() const override { return least_vocabulary_; }
    SpecialIds own_ids() const override { return own_ids_; }
    std::string_view token_bytes(int id) const override;
    bool is_special(int id) const override { return special_.contains(id); }
    std::vector<Token> encode_prompt(std::string_view text) override;
    size_t unread_ends() const override { return counted_; }
    std::vector<std::pair<int, int>> merges() const override;
    std::span<const TextFile> files() const override { return files_; }

protected:
    void append_tokens(std::vector<Token>& tokens, std::string_view text, bool begins) override;
    size_t last_cut(std::string_view text, size_t seen) const override;

private:
    void set_bytes(const std::string& file, const std::string& token, int id, const std::string& bytes);
    void append_words(std::vector<Token>& tokens, std::string_view text, bool begins);
    bool can_cut(std::string_view text, size_t at) const;
    Token in_model(const AddedToken& token) const;

    std::string name_, former_name_;
    std::vector<std::string> token_bytes_;  // empty for a number without a token
    std::optional<int> end_of_text_, begin_of_text_;
    std::set<int> special_;
    SpecialIds own_ids_;
    std::vector<int> before_, after_;
    WordSplitter splitter_;
    bool prefix_space_, nfc_;
    BytePairEncoding encoding_;
    int least_vocabulary_ = 0;
    AddedTokens added_;
    bool counts_added_;
    size_t counted_ = 0;
    std::vector<TextFile> files_;
};
