// Tokens drawn on the device: every width draws those of plain_sampler.h, and draws follow the distribution.
#include <algorithm>
#include <iterator>
#include <random>
#include <type_traits>

#include "common.cuh"
#include "kernels/decode/decode_sample.cuh"
#include "plain_sampler.h"
#include "temporary_folder.h"

namespace {

// Thousands of draws by 512 threads each take minutes on fibers and on the software GPU, which runs the tests
// of the GPU build: there are fewer of them in these.
using Native = std::conditional_t<simt::checked, simt::CpuWidth, simt::NativeWidth<512>>;
int fewer_on_gpu(int draws, int fewer) { return simt::is_gpu() ? fewer : draws; }

// The tokens of `count` samples, from first.sample on, that are all drawn from one row.
template <class W = Native, class T = float>
std::vector<int> sample_tokens(const std::vector<float>& logits, const Sampling& sampling, const Draw& first,
                               size_t count) {
    const auto row = upload<T>(logits);
    const simt::DeviceBuffer<int> tokens(count);
    decode_sample<W>(tokens.data(),
                     SampledRows<T>{row.data(), 0, static_cast<int>(logits.size()), static_cast<int>(count)},
                     sampling, first, nullptr);
    return download_raw(tokens);
}

int sample_token(const std::vector<float>& logits, const Sampling& sampling, const Draw& draw) {
    return sample_tokens(logits, sampling, draw, 1)[0];
}

std::vector<int> count_draws(const std::vector<float>& logits, const Sampling& sampling, int draws) {
    std::vector<int> seen(logits.size());
    for (const int token : sample_tokens(logits, sampling, {.seed = 1}, static_cast<size_t>(draws)))
        seen[static_cast<size_t>(token)]++;
    return seen;
}

template <class W>
class DecodeSample : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32, 512>;
TYPED_TEST_SUITE(DecodeSample, Widths);

std::vector<float> random_logits(size_t V, float spread, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logits(V);
    for (float& l : logits) l = normal(random);
    return logits;
}

template <class W, class T>
void expect_plain_tokens(std::vector<float> logits, const Sampling& sampling, size_t count) {
    for (float& l : logits) l = static_cast<float>(T(l));
    const Draw first{.seed = logits.size(), .step = 3, .index = 5, .sample = 9};
    EXPECT_EQ((sample_tokens<W, T>(logits, sampling, first, count)),
              plain::sample_tokens(logits, sampling, first, count))
        << "V " << logits.size() << " temperature " << sampling.temperature << " top-k " << sampling.top_k
        << " top-p " << sampling.top_p;
}

// Whole vocabularies and odd ones; logits that are close together, far apart, equal, in ties (in bf16 most of
// them), of both signs of zero, and minus infinity in every place.
TYPED_TEST(DecodeSample, DrawsTheTokensOfThePlainLoops) {
    uint32_t seed = 1;
    const bool slow = TypeParam::threads > 1, on_fibers = slow && simt::checked;
    for (const size_t V : {1, 2, 7, 131, 1023, 1025, 9001, 50257, 200003}) {
        for (int kind = 0; kind < 5; kind++) {
            if (V > (slow ? 2000 : 100000) && kind != 1) continue;
            if (V > 10000 && on_fibers) continue;
            std::vector<float> logits = random_logits(V, kind == 0 ? 0.01f : 4.0f, seed++);
            for (size_t i = 0; i < V; i++) {
                if (kind == 2) logits[i] = 1.25f;
                if (kind == 3) logits[i] = i % 2 == 0 ? 0.0f : -0.0f;
                if (kind == 4 && i % 3 != 0) logits[i] = -INFINITY;
            }
            for (const Sampling& sampling :
                 {Sampling{0, 3, 0.5}, Sampling{0.8, 0, 1}, Sampling{1e-300, 0, 1}, Sampling{1, 1, 1},
                  Sampling{1, 40, 1}, Sampling{1, 0, 1e-12}, Sampling{1.3, 0, 0.9}, Sampling{0.7, 50, 0.8},
                  Sampling{0.9, 50, 0.8}, Sampling{1, 4, 0.6}, Sampling{2, static_cast<int>(V) - 1, 0.999},
                  Sampling{1, 1 << 30, 1 - 1e-16}}) {
                const size_t count = V > 2000 || on_fibers ? (slow ? 1 : 4) : (slow ? 3 : 40);
                expect_plain_tokens<TypeParam, float>(logits, sampling, count);
                expect_plain_tokens<TypeParam, bfloat16>(logits, sampling, count);
            }
        }
    }
}

// Every sample has a row of its own, aligned to vectors or not; what lies behind the vocabulary is not read.
TYPED_TEST(DecodeSample, EachRowGivesItsToken) {
    const size_t V = 300;
    for (const size_t stride : {V + 84, V + 1}) {
        std::vector<float> rows(5 * stride, NAN);
        for (size_t r = 0; r < 5; r++)
            std::ranges::copy(random_logits(V, 2, static_cast<uint32_t>(r)), &rows[r * stride]);
        const auto device = upload<float>(rows);
        const simt::DeviceBuffer<int> tokens(5);
        const Sampling sampling{.top_k = 100, .top_p = 0.9};
        decode_sample<TypeParam>(tokens.data(),
                                 SampledRows<float>{device.data(), stride, static_cast<int>(V), 5}, sampling,
                                 {.seed = 3}, nullptr);
        std::vector<int> expected;
        for (uint64_t r = 0; r < 5; r++) {
            const Draw draw{.seed = 3, .sample = r};
            expected.push_back(plain::sample_tokens({&rows[r * stride], V}, sampling, draw, 1)[0]);
        }
        EXPECT_EQ(download_raw(tokens), expected) << "stride " << stride;
    }
}

using decode_sample_detail::Sum;

// tokens[b] = the first token at which the sum of the weights exceeds points[b].
template <class W, int N, class T>
__global__ void __launch_bounds__(simt::block_of<W>)
    token_at_kernel(int* tokens, const Sum* points, const T* logits, int V) {
    simt::SharedMemory memory;
    const decode_sample_detail::Shared<W::threads> shared(memory);
    const decode_sample_detail::Row<W::threads, N, T> row{
        .logits = logits, .V = V, .id_bits = 16, .inverse_temperature = 1};
    row.add_parts(shared, 0, V);
    const int token = row.token_at(shared, points[blockIdx.x]);
    if (simt::row_lane<W::threads>() == 0) tokens[blockIdx.x] = token;
}

// Each gap-th token weighs 2^36, the others nothing. The points are the last before a token's weight, its
// first and its last; rows end at, before and after the end of a vector and of a part.
TYPED_TEST(DecodeSample, ATokenBeginsExactlyWhereTheSumBeforeItEnds) {
    using W = TypeParam;
    constexpr int N = W::bytes / sizeof(bfloat16);
    for (const int V : {1, N, 16 * N - 1, 16 * N, 16 * N + 1, 512 * N + 1}) {
        for (const int gap : {1, 3, 200}) {
            std::vector<float> logits(static_cast<size_t>(V), -INFINITY);
            for (size_t id = 0; id < logits.size(); id += static_cast<size_t>(gap)) logits[id] = 0.0f;
            std::vector<Sum> points;
            std::vector<int> expected;
            const int weighing = ceil_div(V, gap);
            for (int i = 0; i < weighing; i += std::max(1, weighing / fewer_on_gpu(150, 40))) {
                const Sum before = static_cast<Sum>(i) << 36;
                for (const Sum point : {i > 0 ? before - 1 : 0, before, before + (Sum{1} << 36) - 1}) {
                    points.push_back(point);
                    expected.push_back(static_cast<int>(point >> 36) * gap);
                }
            }
            const auto row = upload<bfloat16>(logits);
            const simt::DeviceBuffer<Sum> given(points.size());
            const simt::DeviceBuffer<int> tokens(points.size());
            simt::copy_to_device(given.data(), points.data(), given.bytes(), nullptr);
            launch(token_at_kernel<W, N, bfloat16>, static_cast<unsigned>(points.size()), W::threads,
                   decode_sample_detail::Shared<W::threads>::bytes(), nullptr, tokens.data(), given.data(),
                   row.data(), V);
            EXPECT_EQ(download_raw(tokens), expected) << "V " << V << " gap " << gap;
        }
    }
}

TEST(Sampler, DrawsFollowTheSoftmax) {
    const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};
    for (const float temperature : {1.0f, 0.5f}) {
        double total = 0;
        for (const float l : logits) total += std::exp(static_cast<double>(l / temperature));
        const int draws = fewer_on_gpu(60000, 2000);
        const std::vector<int> seen =
            count_draws(logits, {.temperature = static_cast<double>(temperature)}, draws);
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

// The values drawn before top-k and top-p existed: a run that was started then draws them still, unless one
// lies within 1e-6 of the boundary between two tokens, because weights were double precision.
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
    for (uint64_t index = 0; index < 20; index++)
        std::ranges::copy(sample_tokens(flat, Sampling{}, {.seed = 1, .index = index}, 20),
                          std::back_inserter(drawn));
    std::sort(drawn.begin(), drawn.end());
    // 400 of 50,000: 1.6 pairs are expected to be equal.
    EXPECT_GE(std::unique(drawn.begin(), drawn.end()) - drawn.begin(), 390);
}

// The number of tokens that remain, around that of a digit's values.
TEST(Sampler, ANucleusOfAFlatDistributionIsItsFirstTokens) {
    const std::vector<float> flat(40, 1.5f);
    const std::pair<double, int> cases[] = {{0.3875, 16}, {0.4125, 17}, {0.7875, 32}, {0.9875, 40}};
    for (const auto& [top_p, kept] : cases) {
        const std::vector<int> seen = count_draws(flat, {.top_p = top_p}, fewer_on_gpu(1000, 400));
        // At most 40 tokens remain. The probability that one of them is never drawn is at most 40 exp(-25),
        // on a GPU 40 exp(-10).
        EXPECT_EQ(std::count_if(seen.begin(), seen.begin() + kept, [](int n) { return n > 0; }), kept)
            << top_p;
        EXPECT_EQ(std::count(seen.begin() + kept, seen.end(), 0), 40 - kept) << top_p;
    }
}

TEST(Sampler, SettingsAtTheirEdges) {
    const std::vector<float> logits = random_logits(500, 2, 99);
    const int likeliest = static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    for (uint64_t i = 0; i < static_cast<uint64_t>(fewer_on_gpu(200, 20)); i++) {
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

TEST(Sampler, LogitsWithoutAFiniteNumberGiveNoToken) {
    EXPECT_EQ(sample_token({NAN, NAN}, Sampling{}, {}), -1);
    EXPECT_EQ(sample_token({-INFINITY}, Sampling{}, {}), -1);
    EXPECT_THROW(sample_token({}, Sampling{}, {}), UsageError);
}

TEST(Sampler, OneLogitThatIsNotFiniteGivesNoToken) {
    for (const float wrong : {NAN, -NAN, INFINITY}) {
        for (const size_t place : {0, 1, 2}) {
            std::vector<float> logits = {1, 2, 3};
            logits[place] = wrong;
            for (const double temperature : {0.0, 1.0}) {
                EXPECT_EQ(sample_token(logits, {.temperature = temperature, .top_k = 2, .top_p = 0.9}, {}),
                          -1);
            }
        }
    }
}

}  // namespace
