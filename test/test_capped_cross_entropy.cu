// The classifier of capped logits: losses and gradient against plain_llama.h, values that must have no
// influence, and values at the cap.
#include <limits>

#include "common.cuh"
#include "kernels/capped_cross_entropy.cuh"
#include "plain_llama.h"

namespace {

struct Shape {
    size_t N;
    int V, Vp;
};
// As in test_cross_entropy.cu.
const std::vector<Shape> shapes = {{1, 5, 8},       {17, 65, 128}, {5, 33, 33},
                                   {7, 2048, 2048}, {3, 1, 8},     {2, 50257, 50304}};

template <class W>
class CappedCrossEntropy : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 256>;
TYPED_TEST_SUITE(CappedCrossEntropy, Widths);

// The scale of the logits goes from far below the cap to ten times as high.
template <class W, class T>
void test_against_oracle(float scale, float cap) {
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::Message()
                     << "N = " << s.N << ", V = " << s.V << ", Vp = " << s.Vp << ", scale = " << scale);
        const size_t V = static_cast<size_t>(s.V), Vp = static_cast<size_t>(s.Vp);
        auto logits = random_values<T>(s.N * Vp, 1, scale);
        for (size_t i = 0; i < logits.size(); i++) {
            if (i % Vp >= V) logits[i] = 1024.0f;  // padded, without influence
        }
        std::vector<int> targets(s.N);
        for (size_t n = 0; n < s.N; n++) targets[n] = n % 4 == 2 ? -1 : static_cast<int>(n * 7919 % V);
        if (s.N > 4) targets[4] = s.V - 1;  // behind the last whole vector
        const float dloss = 1.0f / 12;
        const auto compute = [&](auto& device, bool write) {
            auto losses = poisoned<float>(s.N);
            const auto on_device = upload(targets);
            classify<W>(device.data(), losses.data(), on_device.data(), dloss, cap, s.N, s.V, s.Vp, write,
                        nullptr);
            return download(losses);
        };
        auto only_losses = upload<T>(logits), gradients = upload<T>(logits);
        const std::vector<float> losses = compute(gradients, true);
        std::vector<Bounded> expected(s.N), dlogits(s.N * Vp);
        plain::capped_cross_entropy(expected.data(), dlogits.data(), exact(logits).data(), targets.data(),
                                    Bounded(dloss), cap, s.N, V, Vp);
        expect_close<float>(losses, expected);
        expect_close<T>(download(gradients), dlogits);
        EXPECT_EQ(compute(only_losses, false), losses);
        EXPECT_EQ(download(only_losses), logits) << "written although nobody wanted gradients";
    }
}
TYPED_TEST(CappedCrossEntropy, MatchesDoublePrecision) {
    for (const float scale : {0.01f, 2.0f, 20.0f}) {
        test_against_oracle<TypeParam, float>(scale, 15);
        test_against_oracle<TypeParam, bfloat16>(scale, 15);
    }
    test_against_oracle<TypeParam, float>(200.0f, 30);
}

TYPED_TEST(CappedCrossEntropy, ExtremeLogitsStaySane) {
    constexpr float huge = 3e38f, inf = std::numeric_limits<float>::infinity(),
                    nan = std::numeric_limits<float>::quiet_NaN();
    constexpr int V = 2000;
    std::vector<float> logits(5 * V, 0.0f);
    logits[7] = huge, logits[V + 7] = -inf, logits[2 * V + 7] = inf, logits[3 * V + 100] = nan;
    const auto x = upload<float>(logits);
    const auto targets = upload(std::vector<int>{7, 7, 1, 7, -1});
    auto losses = poisoned<float>(5);
    classify<TypeParam>(x.data(), losses.data(), targets.data(), 1.0f, 15.0f, 5, V, V, true, nullptr);
    const std::vector<float> l = download(losses), d = download(x);
    const double others = 1999;
    EXPECT_NEAR(l[0], std::log1p(others * std::exp(-15)), 2e-5) << "at the cap; 1 and small numbers in fp32";
    // A GPU's exponentials and quotients have a few ulp, and an ulp of 22 is 2e-6.
    EXPECT_NEAR(l[1], std::log(others + std::exp(-15)) + 15, 5e-5);
    EXPECT_NEAR(l[2], 15 + std::log1p(others * std::exp(-15)), 5e-5);
    EXPECT_TRUE(std::isnan(l[3])) << "a NaN must not go unnoticed";
    EXPECT_EQ(l[4], 0.0f);
    for (const int at : {7, V + 7, 2 * V + 7})
        EXPECT_EQ(d[static_cast<size_t>(at)], 0.0f) << "no slope at the cap";
    for (int i = 4 * V; i < 5 * V; i++) EXPECT_EQ(d[static_cast<size_t>(i)], 0.0f);
}

TYPED_TEST(CappedCrossEntropy, LogitsAreCapped) {
    const std::vector<float> z = {0, 1e-4f, -1, 7, -15, 60, -1e30f};
    const auto x = upload<float>(z);
    cap_logits<TypeParam>(x.data(), z.size(), 15, nullptr);
    const std::vector<float> capped = download(x);
    for (size_t i = 0; i < z.size(); i++)
        EXPECT_NEAR(capped[i], 15 * std::tanh(static_cast<double>(z[i]) / 15), 1e-5) << z[i];
}

TEST(CappedCrossEntropyShapes, ImpossibleOnesAreRefused) {
    float* none = nullptr;
    EXPECT_THROW(classify(none, none, nullptr, 1.0f, 15.0f, 1, 100, 96, true, nullptr), UsageError);
    EXPECT_THROW(classify(none, none, nullptr, 1.0f, -1.0f, 1, 96, 96, true, nullptr), UsageError);
}

}  // namespace
