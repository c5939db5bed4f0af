// hellaswag.h: HellaSwag (Zellers et al. 2019, arXiv:1905.07830): which of four endings does a model find
// likeliest behind a context?
//   Two kinds of files are read, told apart by their first bytes; docs/formats.md has both.
//   JSONL, as published: an object a line with "ctx" (or "ctx_a" and "ctx_b"), "endings" and "label", the
//   number of the right ending.
//     A context becomes tokens as it stands, an ending with a space before it, as in llm.c's and
//     build-nanogpt's evaluation.
//   llm.c's eval file: the same, as tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "system/host_allocator.h"
#include "trainer/data/batch.h"
#include "trainer/data/data_loader.h"
#include "trainer/tokenizer/tokenizer.h"

struct HellaSwagExample {
    int64_t index = 0;                           // in the data set
    size_t label = 0;                            // the right ending
    std::vector<uint16_t> context;               // one token or more
    std::vector<std::vector<uint16_t>> endings;  // two or more, of one token or more
};

// UsageError, naming file and line or example, for anything that is not such a file. The tokenizer is for
// JSONL only.
std::vector<HellaSwagExample> read_hellaswag(const std::string& path, Tokenizer& tokenizer);
// The same from bytes in memory; messages call them `name`.
std::vector<HellaSwagExample> parse_hellaswag(std::string_view bytes, const std::string& name,
                                              Tokenizer& tokenizer);

// Positions of the longest context with an ending: what a model needs to see all of every example.
int longest_row(std::span<const HellaSwagExample> examples);

// Natural logarithms of the probability of each ending's tokens behind the context: their sum, and their
// mean.
struct EndingScores {
    std::vector<double> sum, mean;
};

struct HellaSwagResult {
    double accuracy = 0;       // share of examples whose right ending has the greatest sum
    double accuracy_norm = 0;  // ... the greatest mean, which does not favour short endings
    size_t examples = 0;
};

// The greatest of some log-likelihoods, the first of equals; none, which is nobody's label, if none is
// finite.
size_t likeliest(std::span<const double> log_likelihoods);
HellaSwagResult count_right(std::span<const HellaSwagExample> examples, std::span<const EndingScores> scores);

// The examples as batches, a context with one of its endings a row, longest rows first so that a batch's rows
// are about as long. The rows of an example may lie in different batches. Only an ending's tokens are
// targets.
class HellaSwag {
public:
    struct Row {
        size_t example, ending;
        int length;               // positions: the tokens of both but the last
        int first, target_count;  // targets: positions first .. first + target_count - 1
    };

    // For a model with room for B x T tokens and a vocabulary of V. A context that is too long loses its
    // beginning, as in lm-evaluation-harness. UsageError, naming the example, for an ending longer than T and
    // for a token outside the vocabulary.
    HellaSwag(std::vector<HellaSwagExample> examples, int B, int T, int V,
              const HostAllocator& allocator = HostAllocator::standard());

    const std::vector<HellaSwagExample>& examples() const { return examples_; }
    size_t shortened() const { return shortened_; }  // rows whose context lost tokens
    size_t batches() const;
    // The rows of a batch; the batch itself may have more, which are padding without targets.
    std::span<const Row> rows(size_t batch) const;
    // Valid until the next call.
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
