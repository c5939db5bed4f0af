// evaluate.h: how good is a model? The loss over a validation split, and HellaSwag. Neither changes anything that training uses.
//   Both take any batch size, and its value does not matter: rows are independent, and padding has no targets.
#pragma once
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "data_loader.h"
#include "gpt2.h"
#include "hellaswag.h"

struct Evaluation {
    double loss = 0;        // mean over the tokens, nats
    double perplexity = 0;  // exp(loss)
    size_t tokens = 0;
};

// Asked before every batch; true breaks the evaluation off, which then has no result.
using StopRequested = std::function<bool()>;

// The loader's batches once. Every target counts alike, also where the last batch has fewer.
template <class T>
std::optional<Evaluation> evaluate(GPT2<T>& model, ValidationLoader& loader, const StopRequested& stop) {
    double sum = 0;
    size_t tokens = 0;
    for (size_t i = 0; i < loader.batches(); i++) {
        if (stop()) return std::nullopt;
        const Batch& batch = loader.at(i);
        sum += model.evaluate(batch);
        tokens += static_cast<size_t>(batch.target_count);
    }
    const double loss = sum / static_cast<double>(tokens);
    return Evaluation{loss, std::exp(loss), tokens};
}

// Log-likelihoods of every example's endings.
template <class T>
std::optional<std::vector<EndingScores>> score_endings(GPT2<T>& model, HellaSwag& hellaswag, const StopRequested& stop) {
    std::vector<EndingScores> scores;
    for (const HellaSwagExample& example : hellaswag.examples()) {
        const std::vector<double> none(example.endings.size());
        scores.push_back({none, none});
    }
    for (size_t i = 0; i < hellaswag.batches(); i++) {
        if (stop()) return std::nullopt;
        const Batch& batch = hellaswag.at(i);
        model.evaluate(batch);
        const std::vector<float> losses = model.losses();
        size_t begin = 0;  // of the row
        for (const HellaSwag::Row& row : hellaswag.rows(i)) {
            double sum = 0;
            for (int t = row.first; t < row.first + row.target_count; t++) sum -= static_cast<double>(losses[begin + static_cast<size_t>(t)]);
            scores[row.example].sum[row.ending] = sum;
            scores[row.example].mean[row.ending] = sum / row.target_count;
            begin += static_cast<size_t>(batch.T);
        }
    }
    return scores;
}

template <class T>
std::optional<HellaSwagResult> evaluate(GPT2<T>& model, HellaSwag& hellaswag, const StopRequested& stop) {
    const auto scores = score_endings(model, hellaswag, stop);
    if (!scores) return std::nullopt;
    return count_right(hellaswag.examples(), *scores);
}
