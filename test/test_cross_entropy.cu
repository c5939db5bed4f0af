// The fused classifier: losses and gradient against plain_gpt2.h; values that must have no influence, and
// values that must not overflow
#include <algorithm>
#include <limits>

#include "common.cuh"
#include "kernels/cross_entropy.cuh"

namespace {

struct Shape {
    size_t N;
    int V, Vp;
};
// Almost only padding; no padding, aligned or not; a single class; GPT-2's vocabulary; several rows for
// each block of the GPU.
const std::vector<Shape> shapes = {{1, 5, 8}, {17, 65, 128},   {5, 33, 33},       {7, 2048, 2048},
                                   {3, 1, 8}, {9, 1027, 1152}, {2, 50257, 50304}, {700, 37, 48}};

struct Expected {
    std::vector<Bounded> losses, dlogits;
    Expected(const std::vector<float>& logits, const std::vector<int>& targets, float dloss, size_t V,
             size_t Vp)
        : losses(targets.size()), dlogits(logits.size()) {
        plain::cross_entropy_forward_backward(losses.data(), dlogits.data(), exact(logits).data(),
                                              targets.data(), Bounded(dloss), targets.size(), V, Vp);
    }
};

// Random logits; the padded ones are huge, and must have no influence.
template <class T>
std::vector<float> random_logits(const Shape& s, float scale) {
    auto logits = random_values<T>(s.N * static_cast<size_t>(s.Vp), 1, scale);
    for (size_t i = 0; i < logits.size(); i++) {
        if (i % static_cast<size_t>(s.Vp) >= static_cast<size_t>(s.V)) logits[i] = 1024.0f;
    }
    return logits;
}
std::vector<int> random_targets(const Shape& s) {
    std::mt19937 generator(2);
    std::vector<int> targets(s.N);
    for (size_t n = 0; n < s.N; n++)
        targets[n] = n % 4 == 2 ? -1 : static_cast<int>(generator() % static_cast<unsigned>(s.V));
    if (s.N > 4) targets[4] = s.V - 1;  // behind the last whole vector
    return targets;
}

template <class W>
class CrossEntropy : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 256>;
TYPED_TEST_SUITE(CrossEntropy, Widths);

template <class T>
struct Computed {
    std::vector<float> losses, logits;
};
template <class W, class T>
Computed<T> compute(const std::vector<float>& logits, const std::vector<int>& targets, float dloss, int V,
                    int Vp, bool write_dlogits) {
    const auto logits_ = upload<T>(logits);
    const auto targets_ = upload(targets);
    auto losses = poisoned<float>(targets.size());
    cross_entropy_forward_backward<W>(logits_.data(), losses.data(), targets_.data(), dloss, targets.size(),
                                      V, Vp, write_dlogits, nullptr);
    return {download(losses), download(logits_)};
}

template <class W, class T>
void test_against_oracle(float scale, const std::vector<Shape>& tested = shapes) {
    for (const Shape& s : tested) {
        SCOPED_TRACE(testing::Message()
                     << "N = " << s.N << ", V = " << s.V << ", Vp = " << s.Vp << ", scale = " << scale);
        const auto logits = random_logits<T>(s, scale);
        const auto targets = random_targets(s);
        const float dloss = 1.0f / 12;
        const Expected expected(logits, targets, dloss, static_cast<size_t>(s.V), static_cast<size_t>(s.Vp));
        const auto [losses, dlogits] = compute<W, T>(logits, targets, dloss, s.V, s.Vp, true);
        expect_close<float>(losses, expected.losses);
        expect_close<T>(dlogits, expected.dlogits);

        const auto only_losses = compute<W, T>(logits, targets, dloss, s.V, s.Vp, false);
        // On a GPU another kernel computes the losses alone, with another order of sums.
        expect_close<float>(only_losses.losses, expected.losses);
        EXPECT_EQ(only_losses.logits, logits) << "written although nobody wanted gradients";
    }
}
TYPED_TEST(CrossEntropy, MatchesDoublePrecision) {
    test_against_oracle<TypeParam, float>(2.0f);
    test_against_oracle<TypeParam, bfloat16>(2.0f);
}
// e^80 fits fp32, but the sum of their products would not
TYPED_TEST(CrossEntropy, MatchesDoublePrecisionWithLargeLogits) {
    test_against_oracle<TypeParam, float>(40.0f);
    test_against_oracle<TypeParam, bfloat16>(40.0f);
}

// The GPU's width keeps a row in shared memory where it fits.
TYPED_TEST(CrossEntropy, MatchesDoublePrecisionWhereARowIsLongerThanSharedMemory) {
    ASSERT_GT(60001 * sizeof(float), simt::max_shared_bytes);
    test_against_oracle<TypeParam, float>(2.0f, {{1, 60001, 60032}});
    test_against_oracle<TypeParam, bfloat16>(2.0f, {{1, 120001, 120064}});
}
// The gradient of the target's column is written by a thread of its own.
TYPED_TEST(CrossEntropy, EveryColumnCanBeTheTarget) {
    constexpr size_t V = 45, Vp = 48;
    const auto row = random_values<float>(Vp, 3);
    std::vector<float> logits;
    std::vector<int> targets;
    for (size_t v = 0; v < V; v++)
        logits.insert(logits.end(), row.begin(), row.end()), targets.push_back(static_cast<int>(v));
    const Expected expected(logits, targets, 1.0f, V, Vp);
    const auto [losses, dlogits] = compute<TypeParam, float>(logits, targets, 1.0f, V, Vp, true);
    expect_close<float>(losses, expected.losses);
    expect_close<float>(dlogits, expected.dlogits);
}

TYPED_TEST(CrossEntropy, IgnoredRowsHaveNoLossAndNoGradient) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto [losses, dlogits] =
        compute<TypeParam, float>(std::vector<float>(3 * 40, nan), {-1, -1, -1}, 1.0f, 37, 40, true);
    EXPECT_EQ(losses, std::vector<float>(3, 0.0f));
    EXPECT_EQ(dlogits, std::vector<float>(3 * 40, 0.0f));
}

TYPED_TEST(CrossEntropy, ACertainRowHasNoLossAndAWrongOneHasItAll) {
    std::vector<float> logits(2 * 64, -200.0f);
    logits[10] = logits[64 + 10] = 200.0f;
    const auto [losses, dlogits] = compute<TypeParam, float>(logits, {10, 11}, 1.0f, 64, 64, true);
    EXPECT_EQ(losses, (std::vector<float>{0.0f, 400.0f}));
    std::vector<float> expected(2 * 64, 0.0f);
    expected[64 + 10] = 1.0f, expected[64 + 11] = -1.0f;
    EXPECT_EQ(dlogits, expected);
}

TYPED_TEST(CrossEntropy, ExtremeLogitsStaySane) {
    constexpr float huge = 3e38f, inf = std::numeric_limits<float>::infinity(),
                    nan = std::numeric_limits<float>::quiet_NaN();
    constexpr int V = 2000;
    std::vector<float> logits(5 * V, 0.0f);
    const auto row = [&](size_t n) { return logits.begin() + static_cast<ptrdiff_t>(n * V); };
    std::fill(row(0), row(1), -inf);  // a masked vocabulary: two classes left
    row(0)[3] = row(0)[1999] = 1.0f;
    std::fill(row(1), row(2), -huge);  // uniform, at the lower end of fp32
    row(2)[7] = huge;                  // certain, at the upper end
    row(3)[100] = nan;
    row(4)[100] = inf;
    const auto [losses, dlogits] = compute<TypeParam, float>(logits, {1999, 5, 7, 1, 1}, 1.0f, V, V, true);
    EXPECT_FLOAT_EQ(losses[0], std::log(2.0f));
    EXPECT_FLOAT_EQ(dlogits[3], 0.5f);
    EXPECT_FLOAT_EQ(dlogits[1999], -0.5f);
    EXPECT_EQ(dlogits[4], 0.0f);
    EXPECT_NEAR(losses[1], std::log(2000.0f), 1e-5);
    EXPECT_EQ(losses[2], 0.0f);
    EXPECT_TRUE(std::isnan(losses[3])) << "a NaN must not go unnoticed";
    EXPECT_FALSE(std::isfinite(losses[4])) << "an infinite logit must not go unnoticed";
}

TYPED_TEST(CrossEntropy, SumOfLossesIsExactAndAccumulates) {
    for (const size_t N : {1, 17, 1000, 65536}) {
        SCOPED_TRACE(N);
        const auto losses = random_values<float>(N, 1, 1.0f, 10.0f);
        double expected = 0;
        for (const float loss : losses) expected += loss;
        const auto losses_ = upload<float>(losses);
        auto total = poisoned<float>(1);
        sum_losses<TypeParam>(total.data(), losses_.data(), N, false, nullptr);
        EXPECT_LE(relative_error(download(total), std::vector{expected}), 1e-6);
        sum_losses<TypeParam>(total.data(), losses_.data(), N, true, nullptr);
        EXPECT_LE(relative_error(download(total), std::vector{2 * expected}), 1e-6);
    }
}

// GPT-2's row in bf16 leaves 352 bytes of the 99 KiB that a block may have on a consumer's GPU. The limits by
// compute capability are those of the CUDA C++ Programming Guide.
TEST(CrossEntropyShapes, GPUsKeepARowOfGpt2InSharedMemoryWhereItFits) {
    struct Gpu {
        const char* capabilities;
        size_t kib;
        bool bf16, fp32;
    };
    for (const auto& [capabilities, kib, bf16, fp32] :
         {Gpu{"8.6, 8.9, 12.0", 99, true, false}, Gpu{"8.0", 163, true, false},
          Gpu{"9.0, 10.0", 227, true, true}}) {
        SCOPED_TRACE(capabilities);
        const size_t available = simt::without_collectives(kib << 10);
        EXPECT_EQ((keeps_row<8, bfloat16>(50257, available)), bf16);
        EXPECT_EQ((keeps_row<4, float>(50257, available)), fp32);
    }
    const size_t smallest = simt::without_collectives(99 << 10);
    EXPECT_TRUE((keeps_row<8, bfloat16>(50439, smallest)));
    EXPECT_FALSE((keeps_row<8, bfloat16>(50440, smallest)));
}

TEST(CrossEntropyShapes, PaddedVocabularyBelowTheVocabularyIsRefused) {
    float* none = nullptr;
    EXPECT_THROW(cross_entropy_forward_backward(none, none, nullptr, 1.0f, 1, 100, 96, true, nullptr),
                 UsageError);
}

}  // namespace
