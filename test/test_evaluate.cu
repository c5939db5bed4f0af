// Evaluation: HellaSwag's scores against PyTorch (dev/reference.py), and the loss of a split against its
// windows one by one, at any batch size.
#include <nlohmann/json.hpp>

#include "model.cuh"
#include "temporary_folder.h"
#include "trainer/distributed/single_process.h"
#include "trainer/inference/evaluate.h"
#include "write_shard.h"

namespace {

const std::string hellaswag_file = relocated(PROJECT_ROOT "/test/reference/hellaswag.jsonl");
const StopRequested never = [] { return false; };

template <class T>
std::vector<EndingScores> scores(Model<T>& model, int B) {
    HellaSwag hellaswag(read_hellaswag(hellaswag_file, *make_tokenizer("byte")), B, reference_T,
                        reference_config.V);
    EXPECT_GT(hellaswag.shortened(), 0U);
    SingleProcess alone;
    return *score_endings(model, hellaswag, alone, never);
}

std::vector<EndingScores> pytorch_scores() {
    std::vector<EndingScores> expected;
    std::ifstream file(hellaswag_file);
    for (std::string line; std::getline(file, line);) {
        const auto example = nlohmann::json::parse(line);
        expected.push_back({example["sum"], example["mean"]});
    }
    return expected;
}

void expect_near(const std::vector<EndingScores>& actual, const std::vector<EndingScores>& expected,
                 double bound) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); i++) {
        ASSERT_EQ(actual[i].sum.size(), expected[i].sum.size());
        for (size_t j = 0; j < actual[i].sum.size(); j++) {
            const double tokens = std::round(expected[i].sum[j] / expected[i].mean[j]);
            EXPECT_NEAR(actual[i].mean[j], expected[i].mean[j], bound) << i << ", " << j;
            EXPECT_NEAR(actual[i].sum[j], expected[i].sum[j], bound * tokens) << i << ", " << j;
        }
    }
}

class HellaSwagAtAnyBatch : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Evaluate, HellaSwagAtAnyBatch, testing::Values(1, 4));  // 35 endings in all

// A log-likelihood near 5 of logits near 10, rounded in fp32: 1e-5 is twenty roundings.
TEST_P(HellaSwagAtAnyBatch, ScoresMatchPyTorch) {
    const auto model = reference_model<float>(reference("model"), {.B = GetParam(), .training = false});
    const auto found = scores(*model, GetParam()), expected = pytorch_scores();
    ASSERT_EQ(expected.size(), 9U);
    expect_near(found, expected, 1e-5);
    for (size_t i = 0; i < found.size(); i++) {
        EXPECT_EQ(likeliest(found[i].sum), likeliest(expected[i].sum)) << i;
        EXPECT_EQ(likeliest(found[i].mean), likeliest(expected[i].mean)) << i;
    }
}

// Two blocks of activations rounded to 8 bits; logits have a deviation near 2.
TEST(Evaluate, HellaSwagScoresInBf16AreNearPyTorch) {
    const auto model = reference_model<bfloat16>(reference("model"), {.B = 7, .training = false});
    expect_near(scores(*model, 7), pytorch_scores(), 0.1);
}

// Numbered tokens, so that all windows differ.
TokenShard shard_of(const TemporaryFolder& folder, const std::string& name, size_t tokens) {
    std::vector<Token> numbered(tokens);
    for (size_t i = 0; i < tokens; i++) numbered[i] = static_cast<Token>((i * i + 7 * i + tokens) % 131);
    return TokenShard(write_shard(folder, name, numbered));
}

class SplitAtAnyBatch : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Evaluate, SplitAtAnyBatch, testing::Values(5, 8));  // 7 windows in all

TEST_P(SplitAtAnyBatch, LossIsTheMeanOverItsWindows) {
    const TemporaryFolder folder;
    std::vector<TokenShard> shards;
    for (const size_t tokens : {3 * reference_T + 1, 4, 4 * reference_T + 17})
        shards.push_back(shard_of(folder, std::to_string(shards.size()), tokens));
    constexpr size_t windows = 7;

    // Tokens of 0 to 4 bytes; those of none do not count.
    std::vector<int> text_bytes;
    for (int token = 0; token < reference_config.V; token++) text_bytes.push_back(token * 7 % 5);
    double expected = 0, nats_of_text = 0, bytes = 0;
    const auto one_row = reference_model<float>(reference("model"), {.B = 1, .training = false});
    for (const TokenShard& shard : shards) {
        const std::vector<Token> all = shard.tokens();
        for (size_t at = 0; at + reference_T < all.size(); at += reference_T) {
            const auto first = all.begin() + static_cast<std::ptrdiff_t>(at);
            const std::vector<int> tokens(first, first + reference_T + 1);
            one_row->evaluate(OwnedBatch(1, reference_T, {tokens.begin(), tokens.end() - 1},
                                         {tokens.begin() + 1, tokens.end()}));
            const std::vector<float> losses = one_row->losses();
            for (size_t t = 0; t < losses.size(); t++) {
                const double loss = static_cast<double>(losses[t]);
                const int of_token = text_bytes.at(static_cast<size_t>(tokens[t + 1]));
                expected += loss / (windows * reference_T);
                bytes += of_token;
                nats_of_text += of_token > 0 ? loss : 0;
            }
        }
    }

    const auto model = reference_model<float>(reference("model"), {.B = GetParam(), .training = false});
    ValidationLoader loader(shards, GetParam(), reference_T, reference_config.V);
    SingleProcess alone;
    for (int again = 0; again < 2; again++) {
        const auto found = evaluate(*model, loader, text_bytes, alone, never);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->tokens, windows * reference_T);
        EXPECT_NEAR(found->loss, expected, 5e-6);  // sums of up to 133 losses in fp32
        EXPECT_EQ(found->perplexity, std::exp(found->loss));
        EXPECT_NEAR(found->bits_per_byte.value(), nats_of_text / bytes / std::log(2.0), 5e-6);
        EXPECT_FALSE(evaluate(*model, loader, {}, alone, never)->bits_per_byte) << "of an unknown tokenizer";
    }
}

TEST(Evaluate, AStopLeavesNoResult) {
    const TemporaryFolder folder;
    std::vector<TokenShard> shards;
    shards.push_back(shard_of(folder, "shard", 5 * reference_T + 1));
    const auto model = reference_model<float>(reference("model"), {.B = 2, .training = false});
    ValidationLoader loader(shards, 2, reference_T, reference_config.V);
    HellaSwag hellaswag(read_hellaswag(hellaswag_file, *make_tokenizer("byte")), 2, reference_T,
                        reference_config.V);
    SingleProcess alone;
    int asked = 0;
    const StopRequested at_the_third = [&] { return ++asked == 3; };
    EXPECT_FALSE(evaluate(*model, loader, {}, alone, at_the_third));
    EXPECT_EQ(asked, 3);
    asked = 0;
    EXPECT_FALSE(evaluate(*model, hellaswag, alone, at_the_third));
    EXPECT_EQ(asked, 3);
}

// Computing a score between two steps changes nothing.
TEST(Evaluate, TrainingGoesOnUntouched) {
    const SafetensorsFile dump = reference("model");
    const OwnedBatch batch = reference_batch(dump);
    std::vector<float> losses[2];
    for (const bool between : {false, true}) {
        const auto model = reference_model<float>(dump);
        for (int step = 0; step < 2; step++) {
            losses[between].push_back(train_step(*model, batch).loss);
            if (between && step == 0) scores(*model, reference_B);
        }
    }
    EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
