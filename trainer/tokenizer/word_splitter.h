// word_splitter.h: cuts texts into words, within which byte-pair encoding merges. Each pattern is a function
//   of its own that reads a text once, character by character (characters.h): no regular expression is run.
//   gpt2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//             Radford et al. 2019, encoder.py
//   llama3    (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
//             \s*[\r\n]+|\s+(?!\S)|\s+
//   qwen      llama3 with \p{N}, nanochat with \p{N}{1,2}
//   gpt4      llama3 with \s+$ before \s*[\r\n]+, as tiktoken's cl100k_base has it: white space at the end of
//             a text is one word
//   gpt4_number_runs   gpt4 with \p{N}+
//   digits, digit_runs Hugging Face's step Digits: each number by itself, or runs of numbers, and what lies
//             between them
// docs/formats.md lists the regular expressions by which files name the patterns.
// A maximal run of bytes that are not UTF-8 is a word, and the text on either side of it is split by itself.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

enum class SplitPattern { gpt2, gpt4, gpt4_number_runs, llama3, nanochat, qwen, digits, digit_runs };

// The pattern of a regular expression as files write it; nothing for any other.
std::optional<SplitPattern> pattern_of_regex(std::string_view regex);
// A regular expression for a file, with the same words in Hugging Face's tokenizers and in tiktoken. The
// pattern must be neither digits nor digit_runs.
std::string_view regex_of(SplitPattern pattern);

// The bytes of the first word of a text that is not empty.
size_t first_word(SplitPattern pattern, std::string_view text);

class WordSplitter {
public:
    // Each step splits the pieces that the step before it made. Without steps, a text is one word.
    explicit WordSplitter(const std::vector<SplitPattern>& steps);

    // Calls consume(word) for every word in order. The words together are the text.
    template <class Consume>
    void split(std::string_view text, const Consume& consume) const {
        split_by(0, text, consume);
    }

    // True if a word of the text ends at a position for certain, whatever precedes the character before it.
    // Not all ends of words are recognised.
    bool word_ends_at(std::string_view text, size_t at) const;

    const std::vector<SplitPattern>& steps() const { return steps_; }

private:
    using FirstWord = size_t (*)(std::string_view text);

    template <class Consume>
    void split_by(size_t step, std::string_view text, const Consume& consume) const {
        if (step == functions_.size()) {
            if (!text.empty()) consume(text);
            return;
        }
        const FirstWord first = functions_[step];
        const bool last = step + 1 == functions_.size();
        while (!text.empty()) {
            const size_t bytes = first(text);
            if (last) consume(text.substr(0, bytes));
            else split_by(step + 1, text.substr(0, bytes), consume);
            text.remove_prefix(bytes);
        }
    }

    std::vector<SplitPattern> steps_;
    std::vector<FirstWord> functions_;
};
