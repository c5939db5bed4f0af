// GELU: forward and backward against plain_gpt2.h.
#include "common.cuh"
#include "kernels/gelu.cuh"

namespace {

template <class W>
class Gelu : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Gelu, Widths);

const std::vector<size_t> sizes = {1, 7, 8, 513, 20003};

// offset > 0: arrays that begin in the middle of a vector
template <class W, class T>
void test_both_directions(size_t n, size_t offset) {
    SCOPED_TRACE(testing::Message() << "n = " << n << ", offset = " << offset);
    const auto inp = random_values<T>(n + offset, 1, 2.5f), dout = random_values<T>(n + offset, 2);
    const auto inp_ = upload<T>(inp), dout_ = upload<T>(dout);
    auto out = poisoned<T>(n + offset), dinp = poisoned<T>(n + offset), dinp_in_place = upload<T>(dout);
    gelu_forward<W>(out.data() + offset, inp_.data() + offset, n, nullptr);
    gelu_backward<W>(dinp.data() + offset, dout_.data() + offset, inp_.data() + offset, n, nullptr);
    gelu_backward<W>(dinp_in_place.data() + offset, dinp_in_place.data() + offset, inp_.data() + offset, n,
                     nullptr);

    const auto behind_offset = [&](std::vector<float> values) {
        return std::vector<float>(values.begin() + static_cast<ptrdiff_t>(offset), values.end());
    };
    const auto x = exact(behind_offset(inp)), dx = exact(behind_offset(dout));
    std::vector<Bounded> expected(n);
    plain::gelu_forward(expected.data(), x.data(), n);
    expect_close<T>(behind_offset(download(out)), expected);
    plain::gelu_backward(expected.data(), dx.data(), x.data(), n);
    expect_close<T>(behind_offset(download(dinp)), expected);
    EXPECT_EQ(behind_offset(download(dinp_in_place)), behind_offset(download(dinp)));
    for (size_t i = 0; i < offset; i++)
        EXPECT_TRUE(std::isnan(download(out)[i])) << "wrote in front of the array";
}

TYPED_TEST(Gelu, MatchesDoublePrecision) {
    for (const size_t n : sizes) {
        for (const size_t offset : {0, 1}) {
            test_both_directions<TypeParam, float>(n, offset);
            test_both_directions<TypeParam, bfloat16>(n, offset);
        }
    }
}

TYPED_TEST(Gelu, TailsAreExact) {
    const std::vector<float> inp = {0.0f, -0.0f, 1e-30f, -1e-30f, 5, -5, 9, -9, 30, -30, 1e4f, -1e4f},
                             ones(inp.size(), 1.0f);
    const auto inp_ = upload<float>(inp);
    auto out = poisoned<float>(inp.size()), dinp = upload<float>(ones);
    gelu_forward<TypeParam>(out.data(), inp_.data(), inp.size(), nullptr);
    gelu_backward<TypeParam>(dinp.data(), dinp.data(), inp_.data(), inp.size(), nullptr);
    std::vector<Bounded> expected;
    for (const float x : inp) expected.push_back(plain::gelu(Bounded(x)));
    expect_close(out, expected);
    for (size_t i = 0; i < inp.size(); i++) expected[i] = plain::gelu_derivative(Bounded(inp[i]));
    expect_close(dinp, expected);
}

TYPED_TEST(Gelu, NaNStaysNaN) {
    const auto inp = poisoned<float>(3);
    auto out = upload<float>({1, 2, 3});
    gelu_forward<TypeParam>(out.data(), inp.data(), 3, nullptr);
    for (const float value : download(out)) EXPECT_TRUE(std::isnan(value));
    const auto dinp = upload<float>({1, 2, 3});
    gelu_backward<TypeParam>(dinp.data(), dinp.data(), inp.data(), 3, nullptr);
    for (const float value : download(dinp)) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
