// tokenizer_training.h: a tokenizer.json that is made from texts.
//   Texts are cut into words by all threads, 64 MiB at a time, and counted; then the merges are found
//   (merge_training.h). Memory holds each distinct word once, and 64 MiB of text. Only if the distinct words
//   would be more than `most_words`, the rarest are dropped, so that the result may depend on the order of
//   the texts; it never depends on the number of threads.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/joined_texts.h"
#include "trainer/tokenizer/merge_training.h"
#include "trainer/tokenizer/word_counts.h"
#include "trainer/tokenizer/word_splitter.h"

struct TokenizerTrainingOptions {
    size_t vocabulary = 0;  // tokens: 256 bytes, merged ones, special ones
    SplitPattern pattern = SplitPattern::gpt2;
    std::vector<std::string> special{};  // numbered last; the first one begins and ends texts
    size_t most_words = 20'000'000;
    int threads = 1;
    std::function<void(size_t bytes)> read{};  // called with the bytes of text so far; may throw to stop
    std::function<void(size_t tokens)> made{};
};

class TokenizerTraining {
public:
    explicit TokenizerTraining(const TokenizerTrainingOptions& options);
    ~TokenizerTraining();
    TokenizerTraining(const TokenizerTraining&) = delete;

    void append(const TextPart& part);  // a file
    void append(std::string_view document);
    const TextFindings& findings() const;

    struct Result {
        std::string tokenizer, config;  // tokenizer.json and tokenizer_config.json
        size_t bytes, words, dropped;   // of text; distinct words; those that were dropped
        size_t vocabulary;
    };
    // UsageError if there was no text, or if its words have too few pairs for the vocabulary.
    Result finish();

private:
    class Collector;
    void take(std::string_view piece);
    void count_pieces();

    TokenizerTrainingOptions options_;
    WordSplitter splitter_;
    std::unique_ptr<Collector> collector_;
    std::unique_ptr<JoinedTexts> texts_;
    std::vector<std::string> pieces_;  // which wait to be counted
    size_t waiting_ = 0, bytes_ = 0, dropped_ = 0;
    std::vector<WordCounts> counts_;  // by thread
};
