#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "system/error.h"
#include "temporary_folder.h"
#include "trainer/inference/sampler.h"

namespace {

// The probabilities after top-k and top-p, computed the simple way: everything sorted, in long double.
// `tie` is true if rounding may decide whether one token more or less is kept.
struct Reference {
    std::vector<double> probability;
    bool tie = false;
};

Reference reference(const std::vector<float>& logits, const Sampling& sampling) {
    std::vector<size_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), size_t{0});
    std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    if (sampling.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(sampling.top_k)));
    std::vector<long double> likelihood(logits.size());
    const auto total = [&] { return std::accumulate(likelihood.begin(), likelihood.end(), 0.0L); };
    for (const size_t id : ids)
        likelihood[id] =
            std::exp((static_cast<long double>(logits[id]) - logits[ids[0]]) / sampling.temperature);
    Reference result;
    if (sampling.top_p < 1) {
        const long double all = total();
        long double before = 0;
        for (const size_t id : ids) {
            result.tie |= std::abs(before / all - sampling.top_p) < 1e-9L;
            const long double own = likelihood[id];
            if (before > 0 && before / all >= sampling.top_p) likelihood[id] = 0;
            before += own;
        }
    }
    const long double all = total();
    for (const long double l : likelihood) result.probability.push_back(static_cast<double>(l / all));
    return result;
}

std::vector<int> count_draws(const std::vector<float>& logits, const Sampling& sampling, int draws) {
    std::vector<int> seen(logits.size());
    for (int i = 0; i < draws; i++)
        seen[static_cast<size_t>(
            sample_token(logits, sampling, {.seed = 7, .index = static_cast<uint64_t>(i)}))]++;
    return seen;
}

// Pearson's chi-squared over the tokens that are expected 5 times or more (the others together); its mean is
// the degrees of freedom n, its variance 2 n. A token that must not be drawn fails at once.
void expect_distribution(const std::vector<float>& logits, const Sampling& sampling) {
    const Reference expected = reference(logits, sampling);
    ASSERT_FALSE(expected.tie);
    const int draws = 3000;
    const std::vector<int> seen = count_draws(logits, sampling, draws);
    double chi_squared = 0, rare_expected = 0, rare_seen = 0;
    int cells = 0;
    for (size_t t = 0; t < logits.size(); t++) {
        const double p = expected.probability[t] * draws;
        EXPECT_TRUE(p > 0 || seen[t] == 0) << "token " << t;
        if (p < 5) {
            rare_expected += p;
            rare_seen += seen[t];
            continue;
        }
        chi_squared += (seen[t] - p) * (seen[t] - p) / p;
        cells++;
    }
    if (rare_expected > 0) {
        chi_squared += (rare_seen - rare_expected) * (rare_seen - rare_expected) / rare_expected;
        cells++;
    }
    const double freedom = std::max(1, cells - 1);
    EXPECT_LE(chi_squared, freedom + 5 * std::sqrt(2 * freedom)) << cells << " cells";
}

std::vector<float> random_logits(size_t V, float spread, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logits(V);
    for (float& l : logits) l = normal(random);
    return logits;
}

TEST(Sampler, DrawsFollowTheSoftmax) {
    const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};
    for (const float temperature : {1.0f, 0.5f}) {
        double total = 0;
        for (const float l : logits) total += std::exp(static_cast<double>(l / temperature));
        const int draws = 100000;
        std::vector<int> seen(4);
        for (int i = 0; i < draws; i++)
            seen[static_cast<size_t>(sample_token(logits, {.temperature = static_cast<double>(temperature)},
                                                  {1, 2, static_cast<uint64_t>(i)}))]++;
        for (size_t t = 0; t < 4; t++) {
            const double p = std::exp(static_cast<double>(logits[t] / temperature)) / total;
            // five standard deviations
            EXPECT_NEAR(seen[t] / static_cast<double>(draws), p, 5 * std::sqrt(p * (1 - p) / draws))
                << "token " << t;
        }
    }
}

TEST(Sampler, ADrawIsAFunctionOfSeedStepAndIndex) {
    const std::vector<float> flat(1000, 0.0f);
    const int token = sample_token(flat, Sampling{}, {1, 2, 3});
    EXPECT_EQ(sample_token(flat, Sampling{}, {1, 2, 3}), token);
    EXPECT_FALSE(sample_token(flat, Sampling{}, {2, 2, 3}) == token &&
                 sample_token(flat, Sampling{}, {1, 3, 3}) == token &&
                 sample_token(flat, Sampling{}, {1, 2, 4}) == token);
}

// The values drawn before top-k and top-p existed: runs started then are reproduced exactly.
TEST(Sampler, DrawsWithTemperatureAloneStayAsTheyWere) {
    std::vector<float> logits(1000);
    for (size_t i = 0; i < logits.size(); i++) logits[i] = std::sin(static_cast<float>(i)) * 3;
    std::vector<int> drawn;
    for (uint64_t i = 0; i < 8; i++)
        drawn.push_back(sample_token(logits, {.temperature = static_cast<double>(0.8f)},
                                     {.seed = 1337, .step = 500, .index = i}));
    EXPECT_EQ(drawn, (std::vector<int>{681, 655, 77, 875, 932, 33, 906, 397}));
}

TEST(Sampler, SamplesOfOneStepDiffer) {
    const std::vector<float> flat(50000, 0.0f);
    std::vector<int> drawn;
    for (uint64_t sample = 0; sample < 20; sample++) {
        for (uint64_t index = 0; index < 20; index++) {
            drawn.push_back(
                sample_token(flat, Sampling{}, {.seed = 1, .step = 0, .index = index, .sample = sample}));
        }
    }
    std::sort(drawn.begin(), drawn.end());
    // 400 of 50,000: 1.6 pairs are expected to be equal.
    EXPECT_GE(std::unique(drawn.begin(), drawn.end()) - drawn.begin(), 390);
}

TEST(Sampler, TopKAndTopPFollowTheReference) {
    uint32_t seed = 1;
    for (const size_t V : {5, 131, 400}) {
        for (const float spread : {0.01f, 1.0f, 5.0f}) {
            const std::vector<float> logits = random_logits(V, spread, seed++);
            for (const Sampling& sampling :
                 {Sampling{0.7, 3, 1.0}, Sampling{1.0, 40, 1.0}, Sampling{1.3, 0, 0.9}, Sampling{1.0, 0, 0.3},
                  Sampling{0.9, 50, 0.8}, Sampling{1.0, 4, 0.6}, Sampling{2.0, 350, 0.999}}) {
                SCOPED_TRACE(testing::Message()
                             << "V " << V << " spread " << spread << " temperature " << sampling.temperature
                             << " top-k " << sampling.top_k << " top-p " << sampling.top_p);
                expect_distribution(logits, sampling);
            }
        }
    }
}

// The number of tokens that remain, where the first sorted range of them is not enough.
TEST(Sampler, ANucleusOfAFlatDistributionIsItsFirstTokens) {
    const std::vector<float> flat(200, 1.5f);
    for (const auto& [top_p, kept] : {std::pair{0.3175, 64}, {0.3225, 65}, {0.4975, 100}, {0.9975, 200}}) {
        const std::vector<int> seen = count_draws(flat, {.top_p = top_p}, 5000);
        // 5,000 draws of at most 200 tokens: the probability that one is never drawn is 200 exp(-25).
        EXPECT_EQ(std::count_if(seen.begin(), seen.begin() + kept, [](int n) { return n > 0; }), kept)
            << top_p;
        EXPECT_EQ(std::count(seen.begin() + kept, seen.end(), 0), 200 - kept) << top_p;
    }
}

TEST(Sampler, SettingsAtTheirEdges) {
    const std::vector<float> logits = random_logits(500, 2, 99);
    const int likeliest = static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    for (uint64_t i = 0; i < 200; i++) {
        const Draw draw{.seed = 3, .index = i};
        const int plain = sample_token(logits, Sampling{}, draw);
        EXPECT_EQ(sample_token(logits, {.top_k = 500}, draw), plain);
        EXPECT_EQ(sample_token(logits, {.top_k = 1 << 30}, draw), plain);
        EXPECT_EQ(sample_token(logits, {.top_k = 1 << 30, .top_p = 1}, draw), plain);
        // rounding must not keep more tokens than there are
        EXPECT_EQ(sample_token(logits, {.top_p = 1 - 1e-16}, draw), plain);
        EXPECT_EQ(sample_token(logits, {.top_k = 1}, draw), likeliest);
        EXPECT_EQ(sample_token(logits, {.top_p = 1e-300}, draw), likeliest);
        EXPECT_EQ(sample_token(logits, {.temperature = 1e-6}, draw), likeliest);
        EXPECT_EQ(sample_token(logits, {.temperature = 0, .top_k = 7, .top_p = 0.5}, draw), likeliest);
        EXPECT_EQ(sample_token(std::vector<float>{-3.0f}, {.top_k = 5, .top_p = 0.1}, draw), 0);
        // Among equal ones the first are kept.
        EXPECT_EQ(sample_token(std::vector<float>{1, 2, 2, 2}, {.top_k = 1}, draw), 1);
        EXPECT_LE(sample_token(std::vector<float>{2, 2, 2, 2}, {.top_k = 2}, draw), 1);
    }
}

TEST(Sampler, RefusesSettingsOutOfRange) {
    EXPECT_EQ(message_of<UsageError>([] { check({.temperature = -1}); }),
              "a temperature of -1; expected a number of at least 0");
    EXPECT_EQ(message_of<UsageError>([] { check({.top_k = -2}); }),
              "a top-k of -2; expected 0 (all tokens) or more");
    EXPECT_EQ(message_of<UsageError>([] { check({.top_p = 0}); }), "a top-p of 0; expected 0 < p <= 1");
    EXPECT_THROW(check({.top_p = 1.01}), UsageError);
    EXPECT_THROW(check({.top_p = NAN}), UsageError);
    EXPECT_THROW(check({.temperature = NAN}), UsageError);
    EXPECT_THROW(check({.temperature = INFINITY}), UsageError);
    check({.temperature = 0, .top_k = 0, .top_p = 1});
}

TEST(Sampler, TemperatureZeroTakesTheFirstOfTheLikeliest) {
    EXPECT_EQ(sample_token(std::vector<float>{1, 5, 5, 2}, {.temperature = 0}, {}), 1);
}

TEST(Sampler, MinusInfinityIsNeverDrawn) {
    const std::vector<float> logits = {-INFINITY, 0.0f, -INFINITY};
    for (uint64_t i = 0; i < 100; i++) EXPECT_EQ(sample_token(logits, Sampling{}, {0, 0, i}), 1);
}

TEST(Sampler, LogitsWithoutAFiniteNumberAreAnError) {
    EXPECT_THROW(sample_token(std::vector<float>{NAN, NAN}, Sampling{}, {}), Error);
    EXPECT_THROW(sample_token(std::vector<float>{-INFINITY}, Sampling{}, {}), Error);
    EXPECT_THROW(sample_token(std::vector<float>{}, Sampling{}, {}), Error);
}

TEST(Sampler, OneLogitThatIsNotFiniteIsAnError) {
    for (const float wrong : {NAN, INFINITY}) {
        for (const size_t place : {0, 1, 2}) {
            std::vector<float> logits = {1, 2, 3};
            logits[place] = wrong;
            for (const double temperature : {0.0, 1.0}) {
                EXPECT_THROW(sample_token(logits, {.temperature = temperature, .top_k = 2, .top_p = 0.9}, {}),
                             Error);
            }
        }
    }
}

}  // namespace
