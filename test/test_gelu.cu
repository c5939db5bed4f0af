// GELU: forward and backward against double precision, and that against PyTorch.
#include "common.cuh"
#include "kernels/gelu.cuh"

namespace {

using Values = std::vector<double>;

// The exact value and derivative at x. u is large in the tails, and exp(2u) multiplies its rounding error
// by 2u: hence the magnitudes.
struct Exact {
    Values out, out_magnitude, derivative, derivative_magnitude;
};
Exact exact(const std::vector<float>& inp) {
    Exact e;
    for (const double x : inp) {
        const double k = std::sqrt(2 / M_PI), u = k * (x + 0.044715 * x * x * x),
                     du = k * (1 + 3 * 0.044715 * x * x);
        const double s = 1 / (1 + std::exp(-2 * u)), complement = 1 / (1 + std::exp(2 * u)),
                     slope = x * s * complement * 2 * du;
        e.out.push_back(x * s);
        e.out_magnitude.push_back(std::abs(x * s) * (1 + 2 * std::abs(u)));
        e.derivative.push_back(s + slope);
        e.derivative_magnitude.push_back((s + std::abs(slope)) * (1 + 2 * std::abs(u)));
    }
    return e;
}

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
    Exact e = exact(behind_offset(inp));
    expect_close<T>(behind_offset(download(out)), e.out, e.out_magnitude);
    for (size_t i = 0; i < n; i++) {
        e.derivative[i] *= dout[i + offset];
        e.derivative_magnitude[i] *= std::abs(dout[i + offset]);
    }
    expect_close<T>(behind_offset(download(dinp)), e.derivative, e.derivative_magnitude);
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
    const Exact e = exact(inp);
    expect_close<float>(download(out), e.out, e.out_magnitude);
    expect_close<float>(download(dinp), e.derivative, e.derivative_magnitude);
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

TEST(GeluOracle, MatchesPyTorch) {
    const SafetensorsFile dump = reference("gelu");
    const Exact e = exact(dump.floats("inp"));
    const auto dout = dump.floats("dout");
    Values dinp;
    for (size_t i = 0; i < dout.size(); i++) dinp.push_back(dout[i] * e.derivative[i]);
    EXPECT_LE(relative_error(dump.floats("out"), e.out), 0x1p-23);
    EXPECT_LE(relative_error(dump.floats("dinp"), dinp), 0x1p-23);
}

}  // namespace
