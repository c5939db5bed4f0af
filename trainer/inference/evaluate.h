// evaluate.h: evaluates a model by its loss over a validation split and by HellaSwag. Neither changes any
// state of training.
//   The batch size does not affect the results, because rows are independent and padding has no targets.
//   Several processes share the batches, and all of them get the result.
#pragma once
#include <cmath>
#include <functional>
#include <numbers>
#include <optional>
#include <vector>

#include "trainer/data/data_loader.h"
#include "trainer/data/hellaswag.h"
#include "trainer/data/input_fault.h"
#include "trainer/distributed/communicator.h"
#include "trainer/engine/model.h"

struct Evaluation {
    double loss = 0;        // mean over the tokens, nats
    double perplexity = 0;  // exp(loss)
    size_t tokens = 0;
    // The nats of the tokens that stand for text, over ln 2 times their bytes; nothing if these are not
    // known. Unlike the loss, it compares models whose tokens differ.
    std::optional<double> bits_per_byte{};
};

// Called before every batch. If it returns true on any rank, the evaluation stops and has no result.
using StopRequested = std::function<bool()>;

// Calls body(i) for this rank's share of `batches`. False if stop() ended it.
template <class Body>
bool for_own_batches(const Communicator& communicator, size_t batches, const StopRequested& stop,
                     const Body& body) {
    for (size_t i = static_cast<size_t>(communicator.rank()); i < batches;
         i += static_cast<size_t>(communicator.size())) {
        if (stop()) return false;
        body(i);
    }
    return true;
}

// Evaluates the loader's batches once. Every target has the same weight, also in a last batch with fewer
// targets. text_bytes: those of each token (shard_tokenizer.h), or empty. InputFault on all ranks if one of
// them cannot read its batches.
template <class T>
std::optional<Evaluation> evaluate(Model<T>& model, ValidationLoader& loader,
                                   const std::vector<int>& text_bytes, Communicator& communicator,
                                   const StopRequested& stop) {
    double sum = 0, tokens = 0, nats_of_text = 0, bytes = 0;  // counts are exact: fewer than 2^53
    bool whole = false;
    std::optional<InputFault> fault;
    try {
        whole = for_own_batches(communicator, loader.batches(), stop, [&](size_t i) {
            const Batch& batch = reading_input([&]() -> const Batch& { return loader.at(i); });
            sum += model.evaluate(batch);
            tokens += batch.target_count;
            if (text_bytes.empty()) return;
            const std::vector<float> losses = model.losses();
            for (size_t n = 0; n < losses.size(); n++) {
                const int target = batch.targets[n];
                if (target < 0 || target >= std::ssize(text_bytes)) continue;
                const int of_token = text_bytes[static_cast<size_t>(target)];
                bytes += of_token;
                if (of_token > 0) nats_of_text += static_cast<double>(losses[n]);
            }
        });
    } catch (const InputFault& error) { fault = error; }
    const std::vector<double> all = sum_over_processes(
        communicator, {sum, tokens, whole ? 0.0 : 1.0, fault ? 1.0 : 0.0, nats_of_text, bytes});
    if (all[3] > 0) throw_together(communicator, fault);
    if (all[2] > 0) return std::nullopt;
    if (all[1] == 0)
        throw InputFault("the masks of the validation data hide every target; expected some that count", 2);
    const double loss = all[0] / all[1];
    Evaluation result{loss, std::exp(loss), static_cast<size_t>(all[1])};
    if (all[5] > 0) result.bits_per_byte = all[4] / (std::numbers::ln2 * all[5]);
    return result;
}

// Log-likelihoods of every example's endings.
template <class T>
std::optional<std::vector<EndingScores>> score_endings(Model<T>& model, HellaSwag& hellaswag,
                                                       Communicator& communicator,
                                                       const StopRequested& stop) {
    std::vector<size_t> first;  // each example's first ending among all endings; an ending has two numbers
    size_t endings = 0;
    for (const HellaSwagExample& example : hellaswag.examples()) {
        first.push_back(endings);
        endings += example.endings.size();
    }
    std::vector<double> numbers(2 * endings + 1, 0.0);  // 0 for endings that other ranks score
    const bool whole = for_own_batches(communicator, hellaswag.batches(), stop, [&](size_t i) {
        const Batch& batch = hellaswag.at(i);
        model.evaluate(batch);
        const std::vector<float> losses = model.losses();
        size_t begin = 0;  // begin of the row
        for (const HellaSwag::Row& row : hellaswag.rows(i)) {
            double sum = 0;
            for (int t = row.first; t < row.first + row.target_count; t++)
                sum -= static_cast<double>(losses[begin + static_cast<size_t>(t)]);
            double* const number = &numbers[2 * (first[row.example] + row.ending)];
            number[0] = sum, number[1] = sum / row.target_count;
            begin += static_cast<size_t>(batch.T);
        }
    });
    numbers.back() = whole ? 0.0 : 1.0;
    numbers = sum_over_processes(communicator, numbers);
    if (numbers.back() > 0) return std::nullopt;
    std::vector<EndingScores> scores;
    for (size_t e = 0; e < first.size(); e++) {
        EndingScores& score = scores.emplace_back();
        for (size_t k = 0; k < hellaswag.examples()[e].endings.size(); k++) {
            score.sum.push_back(numbers[2 * (first[e] + k)]);
            score.mean.push_back(numbers[2 * (first[e] + k) + 1]);
        }
    }
    return scores;
}

template <class T>
std::optional<HellaSwagResult> evaluate(Model<T>& model, HellaSwag& hellaswag, Communicator& communicator,
                                        const StopRequested& stop) {
    const auto scores = score_endings(model, hellaswag, communicator, stop);
    if (!scores) return std::nullopt;
    return count_right(hellaswag.examples(), *scores);
}
