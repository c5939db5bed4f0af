// Layernorm, alone and fused with the residual sum: forward and backward against plain_gpt2.h.
#include "common.cuh"
#include "kernels/layernorm.cuh"

namespace {

struct Shape {
    size_t N;
    int C;
};
// One row; rows that are not whole vectors; more rows than a group of the backward pass, and than a block
// of four; more channels than a block has threads, and (in fp32, in both types) than a block of the GPU
// holds in registers.
const std::vector<Shape> shapes = {{1, 8},  {3, 768}, {7, 1600}, {67, 72},  {133, 544},
                                   {5, 33}, {33, 3},  {2, 2560}, {2, 8224}, {1, 16416}};

constexpr float eps = 1e-5f;

using Values = std::vector<Bounded>;

struct Forward {
    Values out, mean, rstd;
    Forward(const Values& inp, const Values& weight, const Values& bias)
        : out(inp.size()), mean(inp.size() / weight.size()), rstd(mean.size()) {
        plain::layernorm_forward(out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(),
                                 mean.size(), weight.size());
    }
};

template <class W>
class LayerNorm : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32, 256>;
TYPED_TEST_SUITE(LayerNorm, Widths);

// residual: inp is the sum of two tensors, rounded once, and the rounded sum is the one that is normalised.
template <class W, class T>
void test_forward(bool residual, float scale, float offset) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::Message() << "N = " << N << ", C = " << C);
        const size_t channels = static_cast<size_t>(C), count = N * channels;
        auto inp = random_values<T>(count, 1, scale, offset);
        const auto branch = random_values<T>(count, 4), weight = random_values<T>(channels, 2, 0.5f, 1.0f),
                   bias = random_values<T>(channels, 3);
        const auto inp_ = upload<T>(inp), branch_ = upload<T>(branch), weight_ = upload<T>(weight),
                   bias_ = upload<T>(bias);
        auto out = poisoned<T>(count), sum = poisoned<T>(count);
        auto mean = poisoned<float>(N), rstd = poisoned<float>(N);
        layernorm_forward<W>(out.data(), sum.data(), mean.data(), rstd.data(), inp_.data(),
                             residual ? branch_.data() : nullptr, weight_.data(), bias_.data(), eps, N, C,
                             nullptr);
        if (residual) {
            for (size_t i = 0; i < count; i++) inp[i] = static_cast<float>(T(inp[i] + branch[i]));
            EXPECT_EQ(download(sum), inp);
        }
        const Forward expected(exact(inp), exact(weight), exact(bias));
        expect_close(out, expected.out);
        expect_close(mean, expected.mean);
        EXPECT_LE(relative_error(download(rstd), expected.rstd), 1e-6);
    }
}
TYPED_TEST(LayerNorm, ForwardMatchesDoublePrecision) {
    test_forward<TypeParam, float>(false, 2.0f, 0.0f);
    test_forward<TypeParam, bfloat16>(false, 2.0f, 0.0f);
}
// A mean of ten standard deviations costs digits, but no more than the subtraction itself.
TYPED_TEST(LayerNorm, ForwardMatchesDoublePrecisionFarFromZero) {
    test_forward<TypeParam, float>(false, 2.0f, 20.0f);
}
TYPED_TEST(LayerNorm, ResidualForwardMatchesDoublePrecision) {
    test_forward<TypeParam, float>(true, 1.0f, 0.0f);
    test_forward<TypeParam, bfloat16>(true, 1.0f, 0.0f);
}

enum class Carry { none, separate, in_place };  // the source of the residual stream's gradient

template <class W, class T>
void test_backward(Carry carry, bool sum) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::Message()
                     << "N = " << N << ", C = " << C << ", carry = " << static_cast<int>(carry));
        const size_t channels = static_cast<size_t>(C), count = N * channels;
        const auto inp = random_values<T>(count, 1, 2.0f, 0.5f), dout = random_values<T>(count, 2),
                   weight = random_values<T>(channels, 3, 0.5f, 1.0f),
                   dresidual = random_values<T>(carry == Carry::none ? 0 : count, 4);
        const auto dweight_before = random_values<float>(channels, 5),
                   dbias_before = random_values<float>(channels, 6),
                   dinp_sum_before = random_values<float>(channels, 7);

        const Forward f(exact(inp), exact(weight), Values(channels));
        const auto inp_ = upload<T>(inp), dout_ = upload<T>(dout), weight_ = upload<T>(weight),
                   dresidual_ = upload<T>(dresidual);
        const auto mean = upload<float>(rounded(f.mean)), rstd = upload<float>(rounded(f.rstd));
        auto dinp = carry == Carry::in_place ? upload<T>(dresidual) : poisoned<T>(count);
        const auto dweight = upload<float>(dweight_before), dbias = upload<float>(dbias_before),
                   dinp_sum = upload<float>(dinp_sum_before);
        auto scratch = poisoned<float>(layernorm_backward_scratch(N, C, sum ? 3 : 2));
        const T* from = carry == Carry::none       ? nullptr
                        : carry == Carry::separate ? dresidual_.data()
                                                   : dinp.data();
        layernorm_backward<W>(dinp.data(), dweight.data(), dbias.data(), sum ? dinp_sum.data() : nullptr,
                              scratch.data(), from, dout_.data(), inp_.data(), weight_.data(), mean.data(),
                              rstd.data(), N, C, nullptr);

        Values dinp_expected(count), dweight_expected = exact(dweight_before),
                                     dbias_expected = exact(dbias_before);
        plain::layernorm_backward(dinp_expected.data(), dweight_expected.data(), dbias_expected.data(),
                                  exact(dout).data(), exact(inp).data(), exact(weight).data(), f.mean.data(),
                                  f.rstd.data(), N, channels);
        if (carry != Carry::none)
            plain::residual(dinp_expected.data(), exact(dresidual).data(), dinp_expected.data(), count);
        expect_close(dinp, dinp_expected);
        expect_close(dweight, dweight_expected);
        expect_close(dbias, dbias_expected);
        if (!sum) {
            EXPECT_EQ(download(dinp_sum), dinp_sum_before);
            continue;
        }
        Values dinp_sum_expected = exact(dinp_sum_before);
        for (size_t i = 0; i < count; i++) dinp_sum_expected[i % channels] += dinp_expected[i];
        // A row of 3 channels nearly cancels, and so does its sum: the whole is too small to bound its
        // relative error.
        expect_each_close<float>(download(dinp_sum), dinp_sum_expected);
    }
}
TYPED_TEST(LayerNorm, BackwardMatchesDoublePrecision) {
    test_backward<TypeParam, float>(Carry::none, false);
    test_backward<TypeParam, bfloat16>(Carry::none, false);
}
TYPED_TEST(LayerNorm, BackwardAddsToTheResidualsGradient) {
    for (const Carry carry : {Carry::separate, Carry::in_place}) {
        test_backward<TypeParam, float>(carry, false);
        test_backward<TypeParam, bfloat16>(carry, false);
    }
}
TYPED_TEST(LayerNorm, BackwardSumsTheGradientOfItsInput) {
    for (const Carry carry : {Carry::none, Carry::in_place}) {
        test_backward<TypeParam, float>(carry, true);
        test_backward<TypeParam, bfloat16>(carry, true);
    }
}

// A model has one scratch for its layernorms, sized for the largest batch, and runs smaller batches, too.
TEST(LayerNormShapes, ScratchForManyRowsIsEnoughForFewer) {
    for (const int C : {8, 768, 1028, 1600, 5120, 12288}) {
        for (const size_t most : {1, 16, 17, 24576, 24577, 49153, 65536}) {
            for (size_t N = most < 3000 ? 1 : most - 3000; N <= most; N++)
                ASSERT_LE(layernorm_groups(N, C) * 3 * static_cast<size_t>(C),
                          layernorm_backward_scratch(most, C, 3))
                    << N << " of " << most << ", C = " << C;
        }
    }
}

// Shapes of GPT-2 124M and 1558M, and of GPT-3's longest rows: a second wave of blocks would take as long
// as the first.
TEST(LayerNormShapes, AllBlocksOfBackwardRunAtOnce) {
    for (const int C : {8, 768, 1024, 1280, 1600, 2048, 4096, 5120, 12288}) {
        for (const size_t N : {1000, 16384, 65536})
            EXPECT_LE(layernorm_groups(N, C),
                      simt::multiprocessors() * std::max(1u, 640 / layernorm_block(C)))
                << "C = " << C << ", N = " << N;
    }
    EXPECT_EQ(layernorm_block(768), 96u);
    EXPECT_EQ(layernorm_block(5120), 640u);
    EXPECT_EQ(layernorm_block(5128), 256u) << "longer than a block is wide";
    EXPECT_EQ(layernorm_block(1028), 256u) << "not whole vectors of bf16";
}

TEST(LayerNormShapes, EmptyOnesAreRefused) {
    float* none = nullptr;
    EXPECT_THROW(layernorm_forward(none, none, none, none, none, none, none, none, eps, 0, 8, nullptr),
                 UsageError);
    EXPECT_THROW(layernorm_forward(none, none, none, none, none, none, none, none, eps, 8, 0, nullptr),
                 UsageError);
}

}  // namespace
