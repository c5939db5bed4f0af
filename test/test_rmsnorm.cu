// Layernorm without a bias, which is RMSNorm, alone and fused with the residual sum: forward and backward
// against plain_llama.h.
#include "common.cuh"
#include "kernels/layernorm.cuh"
#include "plain_llama.h"

namespace {

struct Shape {
    size_t N;
    int C;
};
// As in test_layernorm.cu, and SmolLM2's 576.
const std::vector<Shape> shapes = {{1, 8},  {3, 576}, {7, 1600}, {67, 72},  {133, 544},
                                   {5, 33}, {33, 3},  {2, 2560}, {2, 8224}, {1, 16416}};
constexpr float eps = 1e-5f;

using Values = std::vector<Bounded>;

struct Forward {
    Values out, rstd;
    Forward(const Values& inp, const Values& weight) : out(inp.size()), rstd(inp.size() / weight.size()) {
        plain::rmsnorm_forward(out.data(), rstd.data(), inp.data(), weight.data(), eps, rstd.size(),
                               weight.size());
    }
};

template <class W>
class RmsNorm : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32, 256>;
TYPED_TEST_SUITE(RmsNorm, Widths);

// residual: inp is the sum of two tensors, rounded once, and the rounded sum is the one that is normalised.
template <class W, class T>
void test_forward(bool residual, float scale) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::Message() << "N = " << N << ", C = " << C);
        const size_t channels = static_cast<size_t>(C), count = N * channels;
        auto inp = random_values<T>(count, 1, scale);
        const auto branch = random_values<T>(count, 4), weight = random_values<T>(channels, 2, 0.5f, 1.0f);
        const auto inp_ = upload<T>(inp), branch_ = upload<T>(branch), weight_ = upload<T>(weight);
        auto out = poisoned<T>(count), sum = poisoned<T>(count);
        auto rstd = poisoned<float>(N);
        const T *const added = residual ? branch_.data() : nullptr, *const no_bias = nullptr;
        layernorm_forward<W>(out.data(), sum.data(), nullptr, rstd.data(), inp_.data(), added, weight_.data(),
                             no_bias, eps, N, C, nullptr);
        if (residual) {
            for (size_t i = 0; i < count; i++) inp[i] = static_cast<float>(T(inp[i] + branch[i]));
            EXPECT_EQ(download(sum), inp);
        }
        const Forward expected(exact(inp), exact(weight));
        expect_close(out, expected.out);
        EXPECT_LE(relative_error(download(rstd), expected.rstd), 1e-6);
    }
}
TYPED_TEST(RmsNorm, ForwardMatchesDoublePrecision) {
    test_forward<TypeParam, float>(false, 2.0f);
    test_forward<TypeParam, bfloat16>(false, 2.0f);
}
// eps is as large as the mean of the squares.
TYPED_TEST(RmsNorm, ForwardMatchesDoublePrecisionNearZero) { test_forward<TypeParam, float>(false, 3e-3f); }
TYPED_TEST(RmsNorm, ResidualForwardMatchesDoublePrecision) {
    test_forward<TypeParam, float>(true, 1.0f);
    test_forward<TypeParam, bfloat16>(true, 1.0f);
}

enum class Carry { none, separate, in_place };  // the source of the residual stream's gradient

template <class W, class T>
void test_backward(Carry carry) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::Message()
                     << "N = " << N << ", C = " << C << ", carry = " << static_cast<int>(carry));
        const size_t channels = static_cast<size_t>(C), count = N * channels;
        const auto inp = random_values<T>(count, 1, 2.0f, 0.5f), dout = random_values<T>(count, 2),
                   weight = random_values<T>(channels, 3, 0.5f, 1.0f),
                   dresidual = random_values<T>(carry == Carry::none ? 0 : count, 4);
        const auto dweight_before = random_values<float>(channels, 5);

        const Forward f(exact(inp), exact(weight));
        const auto inp_ = upload<T>(inp), dout_ = upload<T>(dout), weight_ = upload<T>(weight),
                   dresidual_ = upload<T>(dresidual);
        const auto rstd = upload<float>(rounded(f.rstd));
        auto dinp = carry == Carry::in_place ? upload<T>(dresidual) : poisoned<T>(count);
        const auto dweight = upload<float>(dweight_before);
        auto scratch = poisoned<float>(layernorm_backward_scratch(N, C, 1));
        const T* from = carry == Carry::none       ? nullptr
                        : carry == Carry::separate ? dresidual_.data()
                                                   : dinp.data();
        layernorm_backward<W>(dinp.data(), dweight.data(), nullptr, nullptr, scratch.data(), from,
                              dout_.data(), inp_.data(), weight_.data(), nullptr, rstd.data(), N, C, nullptr);

        Values dinp_expected(count), dweight_expected = exact(dweight_before);
        plain::rmsnorm_backward(dinp_expected.data(), dweight_expected.data(), exact(dout).data(),
                                exact(inp).data(), exact(weight).data(), f.rstd.data(), N, channels);
        if (carry != Carry::none)
            plain::residual(dinp_expected.data(), exact(dresidual).data(), dinp_expected.data(), count);
        expect_close(dinp, dinp_expected);
        expect_close(dweight, dweight_expected);
    }
}
TYPED_TEST(RmsNorm, BackwardMatchesDoublePrecision) {
    test_backward<TypeParam, float>(Carry::none);
    test_backward<TypeParam, bfloat16>(Carry::none);
}
TYPED_TEST(RmsNorm, BackwardAddsToTheResidualsGradient) {
    for (const Carry carry : {Carry::separate, Carry::in_place}) {
        test_backward<TypeParam, float>(carry);
        test_backward<TypeParam, bfloat16>(carry);
    }
}

}  // namespace
