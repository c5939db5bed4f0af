#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "error.h"
#include "sampler.h"

namespace {

TEST(Sampler, DrawsFollowTheSoftmax) {
    const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};
    for (const float temperature : {1.0f, 0.5f}) {
        double total = 0;
        for (const float l : logits) total += std::exp(static_cast<double>(l / temperature));
        const int draws = 100000;
        std::vector<int> seen(4);
        for (int i = 0; i < draws; i++) seen[static_cast<size_t>(sample_token(logits, temperature, {1, 2, static_cast<uint64_t>(i)}))]++;
        for (size_t t = 0; t < 4; t++) {
            const double p = std::exp(static_cast<double>(logits[t] / temperature)) / total;
            EXPECT_NEAR(seen[t] / static_cast<double>(draws), p, 5 * std::sqrt(p * (1 - p) / draws)) << "token " << t;  // five standard deviations
        }
    }
}

TEST(Sampler, ADrawIsAFunctionOfSeedStepAndIndex) {
    const std::vector<float> flat(1000, 0.0f);
    const int token = sample_token(flat, 1.0f, {1, 2, 3});
    EXPECT_EQ(sample_token(flat, 1.0f, {1, 2, 3}), token);
    EXPECT_FALSE(sample_token(flat, 1.0f, {2, 2, 3}) == token && sample_token(flat, 1.0f, {1, 3, 3}) == token &&
                 sample_token(flat, 1.0f, {1, 2, 4}) == token);
}

TEST(Sampler, TemperatureZeroTakesTheFirstOfTheLikeliest) { EXPECT_EQ(sample_token(std::vector<float>{1, 5, 5, 2}, 0.0f, {}), 1); }

TEST(Sampler, MinusInfinityIsNeverDrawn) {
    const std::vector<float> logits = {-INFINITY, 0.0f, -INFINITY};
    for (uint64_t i = 0; i < 100; i++) EXPECT_EQ(sample_token(logits, 1.0f, {0, 0, i}), 1);
}

TEST(Sampler, LogitsWithoutAFiniteNumberAreAnError) {
    EXPECT_THROW(sample_token(std::vector<float>{NAN, NAN}, 1.0f, {}), Error);
    EXPECT_THROW(sample_token(std::vector<float>{-INFINITY}, 1.0f, {}), Error);
}

}  // namespace
