// joined_texts.h: the texts of a split as one stream of tokens. The tokenizer's end of text stands between
// two texts; bytes have none and follow each other directly. Empty texts leave no trace.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

// Bytes of a file; `end` may lie behind its end. A byte order mark at the start of the file is no part.
struct TextPart {
    std::string path;
    size_t begin = 0, end = SIZE_MAX;
};

struct DividedTexts {
    std::vector<TextPart> train, val;
};

// Divides texts so that the last `fraction` of all their bytes is for validation. The text in which it
// begins is divided before a character.
DividedTexts divide_texts(const std::vector<std::string>& paths, double fraction);

// Properties of texts that may surprise a user; notes() makes a line of each.
struct TextFindings {
    std::vector<std::string> marked{}, not_utf8{};  // texts with a byte order mark; texts that are not UTF-8
    std::string first_bytes{};                      // of not_utf8[0], those that are not
    size_t unread_ends = 0;                         // Tokenizer::unread_ends

    void add(const TextFindings& more);
    std::vector<std::string> notes() const;
};

// The tokens that stand before a text. ends: the end of the text before it. begins: the beginning token, if
// it is another one; UsageError if the tokenizer has none.
std::vector<Token> tokens_before_text(const Tokenizer& tokenizer, bool ends, bool begins);

class JoinedTexts {
public:
    using Consume = std::function<void(std::span<const Token>)>;
    // Passes the tokens to `consume` in order, those of a few MiB of text at a time. Only so much text is in
    // memory, unless one word is longer. begins: each text has the tokenizer's beginning token before it; one
    // token is both that and the end of the text before.
    JoinedTexts(Tokenizer& tokenizer, Consume consume, bool begins = false);

    void append(const TextPart& part);
    size_t bytes() const { return bytes_; }  // of text that has been read
    const TextFindings& findings() const { return findings_; }

private:
    bool look_at(const std::string& path, std::string_view piece, size_t begin);

    Tokenizer& tokenizer_;
    Consume consume_;
    size_t ends_before_;  // Tokenizer::unread_ends before the first text
    size_t bytes_ = 0;
    bool begins_, is_empty_ = true;
    TextFindings findings_;
};

// "a.txt", or "a.txt and 2 other texts".
std::string name_of_texts(const std::vector<TextPart>& parts);
