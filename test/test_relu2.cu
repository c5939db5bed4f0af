// ReLU squared in place: forward and backward against plain_llama.h.
#include <limits>

#include "common.cuh"
#include "kernels/relu2.cuh"
#include "plain_llama.h"

namespace {

template <class W>
class Relu2 : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Relu2, Widths);

// offset > 0: arrays that begin in the middle of a vector
template <class W, class T>
void test_both_directions(size_t n, size_t offset) {
    SCOPED_TRACE(testing::Message() << "n = " << n << ", offset = " << offset);
    const auto inp = random_values<T>(n + offset, 1, 2.5f), dact = random_values<T>(n + offset, 2);
    auto act = upload<T>(inp), dinp = upload<T>(dact);
    relu2_forward<W>(act.data() + offset, n, nullptr);
    const std::vector<float> stored = download(act);
    relu2_backward<W>(dinp.data() + offset, dinp.data() + offset, static_cast<const T*>(act.data() + offset),
                      n, nullptr);
    std::vector<Bounded> expected(n + offset);
    plain::relu2_forward(expected.data(), exact(inp).data(), n + offset);
    for (size_t i = 0; i < offset; i++) expected[i] = Bounded(inp[i]);  // is left alone
    expect_close<T>(stored, expected);
    plain::relu2_backward(expected.data(), exact(dact).data(), exact(stored).data(), n + offset);
    for (size_t i = 0; i < offset; i++) expected[i] = Bounded(dact[i]);
    expect_close<T>(download(dinp), expected);
}

TYPED_TEST(Relu2, MatchesDoublePrecision) {
    for (const size_t n : {1, 7, 8, 513, 20003}) {
        for (const size_t offset : {0, 1}) {
            test_both_directions<TypeParam, float>(n, offset);
            test_both_directions<TypeParam, bfloat16>(n, offset);
        }
    }
}

// Backward takes x from its rounded square, and so twice the very number that forward had.
TYPED_TEST(Relu2, TheRootOfTheSquareIsExact) {
    const auto inp = random_values<float>(1000, 3);
    auto act = upload<float>(inp), ones = upload<float>(std::vector<float>(inp.size(), 1.0f));
    relu2_forward<TypeParam>(act.data(), inp.size(), nullptr);
    relu2_backward<TypeParam>(ones.data(), ones.data(), static_cast<const float*>(act.data()), inp.size(),
                              nullptr);
    const std::vector<float> twice = download(ones);
    for (size_t i = 0; i < inp.size(); i++) EXPECT_EQ(twice[i], 2.0f * std::max(inp[i], 0.0f));
}

TYPED_TEST(Relu2, ANaNStaysOneAndInfinitiesAreKnown) {
    const float inf = std::numeric_limits<float>::infinity();
    auto x = upload<float>({std::numeric_limits<float>::quiet_NaN(), inf, -inf, -0.0f});
    relu2_forward<TypeParam>(x.data(), 4, nullptr);
    const std::vector<float> act = download(x);
    EXPECT_TRUE(std::isnan(act[0]));
    EXPECT_EQ(act[1], inf);
    EXPECT_EQ(act[2], 0.0f);
    EXPECT_EQ(act[3], 0.0f);
}

}  // namespace
