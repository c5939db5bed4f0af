// hellaswag.h: HellaSwag (Zellers et al. 2019, arXiv:1905.07830): which of four endings does a model find
// likeliest after a context?
//   Two kinds of files are read; their first bytes distinguish them (docs/formats.md describes both).
//   JSONL, as published: one object a line with "ctx" (or "ctx_a" and "ctx_b"), "endings" and "label",
//   the number of the right ending. The context is tokenized as it stands, each ending with a space
//   before it, as in llm.c's and build-nanogpt's evaluation.
//   llm.c's eval file: the same, as tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "system/host_allocator.h"
#include "system/note.h"
#include "trainer/data/batch.h"
#include "trainer/data/data_loader.h"
#include "trainer/tokenizer/tokenizer.h"

struct HellaSwagExample {
    int64_t index = 0;                        // its number in the data set
    size_t label = 0;                         // number of the right ending, from 0
    std::vector<Token> context;               // one token or more
    std::vector<std::vector<Token>> endings;  // two or more, each of one token or more
};

// UsageError, naming file and line or example, for anything that is not such a file. The tokenizer is
// used for JSONL only. A note says how many examples have halves of characters.
std::vector<HellaSwagExample> read_hellaswag(const std::string& path, Tokenizer& tokenizer,
                                             const Note& note = {});
// The same for bytes in memory, which messages call `name`.
std::vector<HellaSwagExample> parse_hellaswag(std::string_view bytes, const std::string& name,
                                              Tokenizer& tokenizer, const Note& note = {});

// Positions of the longest context with an ending: the sequence length at which no example is shortened.
int longest_row(std::span<const HellaSwagExample> examples);

// Log-probabilities (natural) of each ending's tokens after the context: their sum, and their mean.
struct EndingScores {
    std::vector<double> sum, mean;
};

struct HellaSwagResult {
    double accuracy = 0;       // share of examples whose right ending has the greatest sum
    double accuracy_norm = 0;  // the same for the mean, which does not favour short endings
    size_t examples = 0;
};

// Index of the greatest log-likelihood, the first of equals. If none is finite, the number of them, which
// is no example's label.
size_t likeliest(std::span<const double> log_likelihoods);
HellaSwagResult count_right(std::span<const HellaSwagExample> examples, std::span<const EndingScores> scores);

// The examples as batches. A row is a context with one of its endings; longest rows come first, so that
// the rows of a batch have similar lengths. Rows of one example may be in different batches. Only an
// ending's tokens are targets.
class HellaSwag {
public:
    struct Row {
        size_t example, ending;
        int length;               // positions: all tokens of both except the last
        int first, target_count;  // targets are at positions first .. first + target_count - 1
    };

    // For a model with room for B x T tokens and a vocabulary of V. A context that is too long loses its
    // beginning, as in lm-evaluation-harness. UsageError, naming the example, for an ending longer than T
    // and for a token outside the vocabulary.
    HellaSwag(std::vector<HellaSwagExample> examples, int B, int T, int V,
              const HostAllocator& allocator = HostAllocator::standard());

    const std::vector<HellaSwagExample>& examples() const { return examples_; }
    size_t shortened() const { return shortened_; }  // rows whose context was cut
    void note_shortened(const Note& note) const;     // says how many, if there are any
    size_t batches() const;
    // The rows of a batch. The batch itself may have more rows, which are padding without targets.
    std::span<const Row> rows(size_t batch) const;
    // The batch is valid until the next call.
    const Batch& at(size_t batch);

private:
    void fill(int b, const Row& row);

    std::vector<HellaSwagExample> examples_;
    std::vector<Row> rows_;
    size_t shortened_ = 0;
    int B_, T_;
    std::unique_ptr<void, std::function<void(void*)>> memory_;
    Batch batch_;
};
