// Layernorm, alone and fused with the residual sum: forward and backward against double precision, and that
// against PyTorch.
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

using Values = std::vector<double>;

// In double precision. A magnitude is the size of the terms that cancel in an element: its share of the
// rounding errors.
struct Forward {
    Values out, out_magnitude, mean, mean_magnitude, rstd;
};
Forward forward(const std::vector<float>& inp, const std::vector<float>& weight,
                const std::vector<float>& bias) {
    const size_t C = weight.size(), N = inp.size() / C;
    Forward f{Values(N * C), Values(N * C), Values(N), Values(N), Values(N)};
    for (size_t n = 0; n < N; n++) {
        const float* x = &inp[n * C];
        double mean = 0, magnitude = 0, variance = 0;
        for (size_t c = 0; c < C; c++)
            mean += x[c] / static_cast<double>(C), magnitude += std::abs(x[c]) / static_cast<double>(C);
        for (size_t c = 0; c < C; c++) variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(C);
        const double rstd = 1 / std::sqrt(variance + 1e-5);
        f.mean[n] = mean, f.mean_magnitude[n] = magnitude, f.rstd[n] = rstd;
        for (size_t c = 0; c < C; c++) {
            f.out[n * C + c] = (x[c] - mean) * rstd * weight[c] + bias[c];
            f.out_magnitude[n * C + c] =
                (std::abs(x[c]) + magnitude) * rstd * std::abs(weight[c]) + std::abs(bias[c]);
        }
    }
    return f;
}

struct Backward {
    Values dinp, dinp_magnitude, dweight, dweight_magnitude, dbias, dbias_magnitude, dinp_sum,
        dinp_sum_magnitude;
};
Backward backward(const std::vector<float>& dresidual, const std::vector<float>& dout,
                  const std::vector<float>& inp, const std::vector<float>& weight,
                  const std::vector<float>& dweight_before, const std::vector<float>& dbias_before,
                  const std::vector<float>& dinp_sum_before) {
    const size_t C = weight.size(), N = inp.size() / C;
    const Forward f = forward(inp, weight, std::vector<float>(C));
    Backward b{Values(N * C), Values(N * C), Values(C), Values(C),
               Values(C),     Values(C),     Values(C), Values(C)};
    for (size_t c = 0; c < C; c++) {
        b.dweight[c] = dweight_before[c], b.dweight_magnitude[c] = std::abs(dweight_before[c]);
        b.dbias[c] = dbias_before[c], b.dbias_magnitude[c] = std::abs(dbias_before[c]);
        b.dinp_sum[c] = dinp_sum_before[c], b.dinp_sum_magnitude[c] = std::abs(dinp_sum_before[c]);
    }
    for (size_t n = 0; n < N; n++) {
        const auto norm = [&](size_t c) { return (inp[n * C + c] - f.mean[n]) * f.rstd[n]; };
        const auto norm_magnitude = [&](size_t c) {
            return (std::abs(inp[n * C + c]) + f.mean_magnitude[n]) * f.rstd[n];
        };
        double average = 0, average_norm = 0, average_magnitude = 0, average_norm_magnitude = 0;
        for (size_t c = 0; c < C; c++) {
            const double d = dout[n * C + c], dnorm = d * weight[c];
            average += dnorm / static_cast<double>(C),
                average_magnitude += std::abs(dnorm) / static_cast<double>(C);
            average_norm += dnorm * norm(c) / static_cast<double>(C),
                average_norm_magnitude += std::abs(dnorm) * norm_magnitude(c) / static_cast<double>(C);
            b.dweight[c] += d * norm(c), b.dweight_magnitude[c] += std::abs(d) * norm_magnitude(c);
            b.dbias[c] += d, b.dbias_magnitude[c] += std::abs(d);
        }
        for (size_t c = 0; c < C; c++) {
            const size_t i = n * C + c;
            const double dnorm = static_cast<double>(dout[i]) * weight[c],
                         carry = dresidual.empty() ? 0.0 : dresidual[i];
            b.dinp[i] = carry + (dnorm - average - norm(c) * average_norm) * f.rstd[n];
            b.dinp_magnitude[i] = std::abs(carry) + (std::abs(dnorm) + average_magnitude +
                                                     norm_magnitude(c) * average_norm_magnitude) *
                                                        f.rstd[n];
            b.dinp_sum[c] += b.dinp[i], b.dinp_sum_magnitude[c] += b.dinp_magnitude[i];
        }
    }
    return b;
}

template <class W>
class LayerNorm : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32, 256>;
TYPED_TEST_SUITE(LayerNorm, Widths);

template <class W, class T>
void test_forward(float offset) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::Message() << "N = " << N << ", C = " << C);
        const size_t channels = static_cast<size_t>(C);
        const auto inp = random_values<T>(N * channels, 1, 2.0f, offset),
                   weight = random_values<T>(channels, 2, 0.5f, 1.0f), bias = random_values<T>(channels, 3);
        const auto inp_ = upload<T>(inp), weight_ = upload<T>(weight), bias_ = upload<T>(bias);
        auto out = poisoned<T>(N * channels);
        auto mean = poisoned<float>(N), rstd = poisoned<float>(N);
        layernorm_forward<W>(out.data(), mean.data(), rstd.data(), inp_.data(), weight_.data(), bias_.data(),
                             N, C, nullptr);
        const Forward expected = forward(inp, weight, bias);
        expect_close<T>(download(out), expected.out, expected.out_magnitude);
        expect_close<float>(download(mean), expected.mean, expected.mean_magnitude);
        EXPECT_LE(relative_error(download(rstd), expected.rstd), 1e-6);
    }
}
TYPED_TEST(LayerNorm, ForwardMatchesDoublePrecision) {
    test_forward<TypeParam, float>(0.0f);
    test_forward<TypeParam, bfloat16>(0.0f);
}
// A mean of ten standard deviations costs digits, but no more than the subtraction itself.
TYPED_TEST(LayerNorm, ForwardMatchesDoublePrecisionFarFromZero) { test_forward<TypeParam, float>(20.0f); }

template <class W, class T>
void test_residual_forward() {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::Message() << "N = " << N << ", C = " << C);
        const size_t channels = static_cast<size_t>(C);
        const auto inp = random_values<T>(N * channels, 1), branch = random_values<T>(N * channels, 4),
                   weight = random_values<T>(channels, 2, 0.5f, 1.0f), bias = random_values<T>(channels, 3);
        const auto inp_ = upload<T>(inp), branch_ = upload<T>(branch), weight_ = upload<T>(weight),
                   bias_ = upload<T>(bias);
        auto out = poisoned<T>(N * channels), residual = poisoned<T>(N * channels);
        auto mean = poisoned<float>(N), rstd = poisoned<float>(N);
        residual_layernorm_forward<W>(out.data(), residual.data(), mean.data(), rstd.data(), inp_.data(),
                                      branch_.data(), weight_.data(), bias_.data(), N, C, nullptr);
        std::vector<float> sum(inp.size());
        for (size_t i = 0; i < sum.size(); i++)
            // one rounding; the rounded sum is the one that is normalised
            sum[i] = static_cast<float>(T(inp[i] + branch[i]));
        EXPECT_EQ(download(residual), sum);
        const Forward expected = forward(sum, weight, bias);
        expect_close<T>(download(out), expected.out, expected.out_magnitude);
        expect_close<float>(download(mean), expected.mean, expected.mean_magnitude);
        EXPECT_LE(relative_error(download(rstd), expected.rstd), 1e-6);
    }
}
TYPED_TEST(LayerNorm, ResidualForwardMatchesDoublePrecision) {
    test_residual_forward<TypeParam, float>();
    test_residual_forward<TypeParam, bfloat16>();
}

enum class Carry { none, separate, in_place };  // the source of the residual stream's gradient

template <class W, class T>
void test_backward(Carry carry, bool sum) {
    for (const auto& [N, C] : shapes) {
        SCOPED_TRACE(testing::Message()
                     << "N = " << N << ", C = " << C << ", carry = " << static_cast<int>(carry));
        const size_t channels = static_cast<size_t>(C);
        const auto inp = random_values<T>(N * channels, 1, 2.0f, 0.5f),
                   dout = random_values<T>(N * channels, 2),
                   weight = random_values<T>(channels, 3, 0.5f, 1.0f);
        const auto dresidual =
            carry == Carry::none ? std::vector<float>() : random_values<T>(N * channels, 4);
        const auto dweight_before = random_values<float>(channels, 5),
                   dbias_before = random_values<float>(channels, 6),
                   dinp_sum_before = random_values<float>(channels, 7);

        const Forward f = forward(inp, weight, std::vector<float>(channels));
        const auto inp_ = upload<T>(inp), dout_ = upload<T>(dout), weight_ = upload<T>(weight),
                   dresidual_ = upload<T>(dresidual);
        const auto mean = upload<float>({f.mean.begin(), f.mean.end()}),
                   rstd = upload<float>({f.rstd.begin(), f.rstd.end()});
        auto dinp = carry == Carry::in_place ? upload<T>(dresidual) : poisoned<T>(N * channels);
        const auto dweight = upload<float>(dweight_before), dbias = upload<float>(dbias_before),
                   dinp_sum = upload<float>(dinp_sum_before);
        auto scratch = poisoned<float>(layernorm_backward_scratch(N, C));
        const T* from = carry == Carry::none       ? nullptr
                        : carry == Carry::separate ? dresidual_.data()
                                                   : dinp.data();
        layernorm_backward<W>(dinp.data(), dweight.data(), dbias.data(), sum ? dinp_sum.data() : nullptr,
                              scratch.data(), from, dout_.data(), inp_.data(), weight_.data(), mean.data(),
                              rstd.data(), N, C, nullptr);

        const Backward expected =
            backward(dresidual, dout, inp, weight, dweight_before, dbias_before, dinp_sum_before);
        expect_close<T>(download(dinp), expected.dinp, expected.dinp_magnitude);
        expect_close<float>(download(dweight), expected.dweight, expected.dweight_magnitude);
        expect_close<float>(download(dbias), expected.dbias, expected.dbias_magnitude);
        // A row of 3 channels nearly cancels, and so does its sum: the whole is too small to bound its
        // relative error.
        if (sum) expect_each_close<float>(download(dinp_sum), expected.dinp_sum, expected.dinp_sum_magnitude);
        else EXPECT_EQ(download(dinp_sum), dinp_sum_before);
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

TEST(LayerNormOracle, MatchesPyTorch) {
    const SafetensorsFile dump = reference("layernorm");
    const auto inp = dump.floats("inp"), weight = dump.floats("weight"),
               zeros = std::vector<float>(weight.size());
    const Forward f = forward(inp, weight, dump.floats("bias"));
    EXPECT_LE(relative_error(dump.floats("out"), f.out), 0x1p-23);
    EXPECT_LE(relative_error(dump.floats("mean"), f.mean), 0x1p-23);
    EXPECT_LE(relative_error(dump.floats("rstd"), f.rstd), 0x1p-23);
    const Backward b = backward({}, dump.floats("dout"), inp, weight, zeros, zeros, zeros);
    EXPECT_LE(relative_error(dump.floats("dinp"), b.dinp), 0x1p-23);
    EXPECT_LE(relative_error(dump.floats("dweight"), b.dweight), 0x1p-23);
    EXPECT_LE(relative_error(dump.floats("dbias"), b.dbias), 0x1p-23);
}

TEST(LayerNormOracle, MatchesPyTorchWithResidual) {
    const SafetensorsFile dump = reference("residual_layernorm");
    const auto inp = dump.floats("residual"), weight = dump.floats("weight"),
               zeros = std::vector<float>(weight.size());
    // The dump's sum was not rounded before it was normalised; our kernel reads the rounded one.
    EXPECT_LE(relative_error(dump.floats("out"), forward(inp, weight, dump.floats("bias")).out), 0x1p-22);
    const Backward b =
        backward(dump.floats("dresidual"), dump.floats("dout"), inp, weight, zeros, zeros, zeros);
    EXPECT_LE(relative_error(dump.floats("dinp"), b.dinp), 0x1p-22);
    EXPECT_LE(relative_error(dump.floats("dweight"), b.dweight), 0x1p-22);
    EXPECT_LE(relative_error(dump.floats("dbias"), b.dbias), 0x1p-22);
}

// A model has one scratch for its layernorms, sized for the largest batch, and runs smaller batches, too.
TEST(LayerNormShapes, ScratchForManyRowsIsEnoughForFewer) {
    for (const int C : {8, 768, 1028, 1600, 5120, 12288}) {
        for (const size_t most : {1, 16, 17, 24576, 24577, 49153, 65536}) {
            for (size_t N = most < 3000 ? 1 : most - 3000; N <= most; N++)
                ASSERT_LE(layernorm_groups(N, C) * 3 * static_cast<size_t>(C),
                          layernorm_backward_scratch(most, C))
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
    EXPECT_THROW(layernorm_forward(none, none, none, none, none, none, 0, 8, nullptr), UsageError);
    EXPECT_THROW(layernorm_forward(none, none, none, none, none, none, 8, 0, nullptr), UsageError);
}

}  // namespace
