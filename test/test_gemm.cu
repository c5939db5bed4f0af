// test_gemm.cu: the forms of gemm.h against double precision in plain loops, and against PyTorch's dumps.
#include "common.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_unfused.h"

namespace {

struct Shape {
    size_t N, C, OC;
    friend void PrintTo(const Shape& s, std::ostream* out) {
        *out << "N " << s.N << ", C " << s.C << ", OC " << s.OC;
    }
};

// A row-major matrix of doubles.
struct Matrix {
    size_t rows, columns;
    std::vector<double> values, magnitudes;  // of each element: the sum of the magnitudes of its terms
    Matrix(size_t rows, size_t columns)
        : rows(rows), columns(columns), values(rows * columns), magnitudes(rows * columns) {}
    void add(size_t row, size_t column, double term) {
        values[row * columns + column] += term;
        magnitudes[row * columns + column] += std::abs(term);
    }
};

double gelu(double x) {
    const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    return x / 2 * (1 + std::tanh(u));
}
double gelu_derivative(double x) {
    const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(u);
    return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// Everything a linear layer computes, in double precision.
template <class T>
struct Oracle {
    size_t N, C, OC;
    std::vector<float> inp, weight, bias, dout;
    Matrix out, dinp, dweight, dbias;

    explicit Oracle(const Shape& shape)
        : N(shape.N),
          C(shape.C),
          OC(shape.OC),
          inp(random_values<T>(N * C, 1)),
          weight(random_values<T>(OC * C, 2, 1 / std::sqrt(static_cast<float>(C)))),
          bias(random_values<T>(OC, 3)),
          dout(random_values<T>(N * OC, 4)),
          out(N, OC),
          dinp(N, C),
          dweight(OC, C),
          dbias(1, OC) {
        for (size_t n = 0; n < N; n++) {
            for (size_t o = 0; o < OC; o++) {
                for (size_t c = 0; c < C; c++) {
                    out.add(n, o, static_cast<double>(inp[n * C + c]) * weight[o * C + c]);
                    dinp.add(n, c, static_cast<double>(dout[n * OC + o]) * weight[o * C + c]);
                    dweight.add(o, c, static_cast<double>(dout[n * OC + o]) * inp[n * C + c]);
                }
                dbias.add(0, o, dout[n * OC + o]);
            }
        }
    }
    void add_bias() {
        for (size_t n = 0; n < N; n++) {
            for (size_t o = 0; o < OC; o++) out.add(n, o, bias[o]);
        }
    }
};

// fp32: 1e-5 and 8 roundings of the sum of magnitudes; bf16 rounds each stored element once.
template <class T, class Stored = T>
void expect_matches(const std::vector<float>& actual, const Matrix& expected) {
    EXPECT_LE(relative_error(actual, expected.values), (std::is_same_v<Stored, float> ? 1e-5 : 1e-2));
    expect_elements(actual, expected.values, expected.magnitudes, epsilon<Stored>);
}

template <class T_, Gemm::Bf16 bf16_>
struct Case {
    using T = T_;
    static constexpr Gemm::Options options = {.bf16 = bf16_};
};

template <class Case>
class GemmTest : public testing::Test {
protected:
    using T = typename Case::T;
    std::unique_ptr<Gemm> gemm;
    simt::DeviceBuffer<char> workspace;

    void SetUp() override {
        try {
            gemm = std::make_unique<Gemm>(Case::options);
        } catch (const UsageError& error) {
            if (Case::options.bf16 != Gemm::Bf16::native) throw;
            GTEST_SKIP() << "a processor without AVX-512 has no products of bfloat16 of its own: "
                         << error.what();
        }
    }
    void prepare(size_t N, size_t C, size_t OC) {
        workspace = poisoned<char>(Gemm::workspace_bytes<T>(N, C, OC));
        gemm->use_workspace(workspace.data(), workspace.bytes());
    }
};
using Cases = testing::Types<Case<float, Gemm::Bf16::automatic>, Case<bfloat16, Gemm::Bf16::native>,
                             Case<bfloat16, Gemm::Bf16::widened>>;
TYPED_TEST_SUITE(GemmTest, Cases);

const Shape shapes[] = {{1, 8, 8},      {3, 768, 33},   {7, 5, 13},     {64, 128, 512},
                        {17, 72, 130},  {1, 1, 1},      {255, 96, 256}, {33, 1024, 40},
                        {40, 40, 1024}, {130, 257, 48}, {600, 24, 100}, {2, 600, 1100}};

TYPED_TEST(GemmTest, ForwardMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::PrintToString(shape));
        const auto& [N, C, OC] = shape;
        Oracle<T> oracle(shape);
        this->prepare(N, C, OC);
        const auto inp = upload<T>(oracle.inp), weight = upload<T>(oracle.weight),
                   bias = upload<T>(oracle.bias);
        const auto plain = poisoned<T>(N * OC), biased = poisoned<T>(N * OC);
        this->gemm->template forward<T>(plain.data(), inp.data(), weight.data(), nullptr, N, C, OC, nullptr);
        this->gemm->forward(biased.data(), inp.data(), weight.data(), bias.data(), N, C, OC, nullptr);
        expect_matches<T>(download(plain), oracle.out);
        oracle.add_bias();
        expect_matches<T>(download(biased), oracle.out);
    }
}

TYPED_TEST(GemmTest, ForwardGeluMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::PrintToString(shape));
        const auto& [N, C, OC] = shape;
        Oracle<T> oracle(shape);
        this->prepare(N, C, OC);
        const auto inp = upload<T>(oracle.inp), weight = upload<T>(oracle.weight),
                   bias = upload<T>(oracle.bias);
        const auto out = poisoned<T>(N * OC), pre_gelu = poisoned<T>(N * OC);
        this->gemm->forward_gelu(out.data(), pre_gelu.data(), inp.data(), weight.data(), bias.data(), N, C,
                                 OC, nullptr);
        oracle.add_bias();
        expect_matches<T>(download(pre_gelu), oracle.out);
        // gelu's slope is at most 1.13: it passes on the error of pre_gelu, and adds one rounding
        Matrix expected(N, OC);
        for (size_t i = 0; i < N * OC; i++) {
            expected.values[i] = gelu(oracle.out.values[i]);
            expected.magnitudes[i] = 1.13 * oracle.out.magnitudes[i];
        }
        expect_matches<T>(download(out), expected);
    }
}

TYPED_TEST(GemmTest, BackwardInputMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::PrintToString(shape));
        const auto& [N, C, OC] = shape;
        Oracle<T> oracle(shape);
        this->prepare(N, C, OC);
        const auto dout = upload<T>(oracle.dout), weight = upload<T>(oracle.weight);
        const auto dinp = poisoned<T>(N * C);
        this->gemm->backward_input(dinp.data(), dout.data(), weight.data(), N, C, OC, nullptr);
        expect_matches<T>(download(dinp), oracle.dinp);
    }
}

TYPED_TEST(GemmTest, BackwardInputGeluMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::PrintToString(shape));
        const auto& [N, C, OC] = shape;
        Oracle<T> oracle(shape);
        this->prepare(N, C, OC);
        const std::vector<float> pre_gelu = random_values<T>(N * C, 5);
        const auto dout = upload<T>(oracle.dout), weight = upload<T>(oracle.weight),
                   device_pre_gelu = upload<T>(pre_gelu);
        const auto dpre_gelu = poisoned<T>(N * C);
        this->gemm->backward_input_gelu(dpre_gelu.data(), dout.data(), weight.data(), device_pre_gelu.data(),
                                        N, C, OC, nullptr);
        // the derivative multiplies the error of dinp, and has a few roundings of its own; next to its
        // zeros these are roundings of terms near 1
        for (size_t i = 0; i < N * C; i++) {
            const double derivative = gelu_derivative(pre_gelu[i]);
            oracle.dinp.values[i] *= derivative;
            oracle.dinp.magnitudes[i] *= std::abs(derivative) + (std::is_same_v<T, float> ? 1.0 : 0.0);
        }
        expect_matches<T>(download(dpre_gelu), oracle.dinp);
    }
}

// dweight is fp32 for any T, and so exact to fp32.
TYPED_TEST(GemmTest, BackwardWeightOverwritesOrAdds) {
    using T = typename TypeParam::T;
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::PrintToString(shape));
        const auto& [N, C, OC] = shape;
        Oracle<T> oracle(shape);
        this->prepare(N, C, OC);
        const auto dout = upload<T>(oracle.dout), inp = upload<T>(oracle.inp);
        const auto dweight = poisoned<float>(OC * C);
        const std::vector<float> before = random_values<float>(OC, 6);
        const auto dbias = upload<float>(before);
        for (size_t i = 0; i < OC; i++) oracle.dbias.add(0, i, before[i]);

        this->gemm->backward_weight(dweight.data(), dbias.data(), dout.data(), inp.data(), N, C, OC, false,
                                    nullptr);
        expect_matches<T, float>(download(dweight), oracle.dweight);
        expect_matches<T, float>(download(dbias), oracle.dbias);

        this->gemm->backward_weight(dweight.data(), nullptr, dout.data(), inp.data(), N, C, OC, true,
                                    nullptr);
        for (double& value : oracle.dweight.values) value *= 2;
        for (double& magnitude : oracle.dweight.magnitudes) magnitude *= 2;
        expect_matches<T, float>(download(dweight), oracle.dweight);
        expect_matches<T, float>(download(dbias), oracle.dbias);
    }
}

TYPED_TEST(GemmTest, TheSameProductGivesTheSameBits) {
    using T = typename TypeParam::T;
    const size_t N = 96, C = 130, OC = 520;
    this->prepare(N, C, OC);
    const auto inp = upload<T>(random_values<T>(N * C, 1)), weight = upload<T>(random_values<T>(OC * C, 2)),
               dout = upload<T>(random_values<T>(N * OC, 3));
    std::vector<float> first;
    for (int round = 0; round < 3; round++) {
        const auto out = poisoned<T>(N * OC), dinp = poisoned<T>(N * C);
        const auto dweight = poisoned<float>(OC * C);
        this->gemm->template forward<T>(out.data(), inp.data(), weight.data(), nullptr, N, C, OC, nullptr);
        this->gemm->backward_input(dinp.data(), dout.data(), weight.data(), N, C, OC, nullptr);
        this->gemm->backward_weight(dweight.data(), nullptr, dout.data(), inp.data(), N, C, OC, false,
                                    nullptr);
        std::vector<float> all = download(out);
        for (const std::vector<float>& more : {download(dinp), download(dweight)})
            all.insert(all.end(), more.begin(), more.end());
        if (round == 0) first = all;
        EXPECT_EQ(all, first);
    }
}

TYPED_TEST(GemmTest, MatchesPyTorch) {
    using T = typename TypeParam::T;
    const double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-2;
    const SafetensorsFile dump = reference("matmul");
    const size_t N = dump.at("inp").shape[0], C = dump.at("inp").shape[1], OC = dump.at("weight").shape[0];
    this->prepare(N, C, OC);
    const auto inp = upload<T>(dump.floats("inp")), weight = upload<T>(dump.floats("weight")),
               bias = upload<T>(dump.floats("bias")), dout = upload<T>(dump.floats("dout"));
    const auto out = poisoned<T>(N * OC), dinp = poisoned<T>(N * C);
    const auto dweight = poisoned<float>(OC * C), dbias = upload<float>(std::vector<float>(OC, 0.0f));
    this->gemm->forward(out.data(), inp.data(), weight.data(), bias.data(), N, C, OC, nullptr);
    this->gemm->backward_input(dinp.data(), dout.data(), weight.data(), N, C, OC, nullptr);
    this->gemm->backward_weight(dweight.data(), dbias.data(), dout.data(), inp.data(), N, C, OC, false,
                                nullptr);
    EXPECT_LE(relative_error(download(out), dump.floats("out")), tolerance);
    EXPECT_LE(relative_error(download(dinp), dump.floats("dinp")), tolerance);
    EXPECT_LE(relative_error(download(dweight), dump.floats("dweight")), tolerance);
    EXPECT_LE(relative_error(download(dbias), dump.floats("dbias")), tolerance);
}

// The MLP: a layer with GELU, and the projection after it, whose input gradient passes back through the GELU.
TYPED_TEST(GemmTest, GeluFormsMatchPyTorch) {
    using T = typename TypeParam::T;
    const double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-2;
    const SafetensorsFile dump = reference("matmul_gelu");
    const size_t N = dump.at("inp").shape[0], C = dump.at("inp").shape[1], OC = dump.at("weight").shape[0],
                 C2 = dump.at("weight_proj").shape[0];
    const auto inp = upload<T>(dump.floats("inp")), weight = upload<T>(dump.floats("weight")),
               bias = upload<T>(dump.floats("bias")), weight_proj = upload<T>(dump.floats("weight_proj")),
               dout_proj = upload<T>(dump.floats("dout_proj"));
    const auto out = poisoned<T>(N * OC), pre_gelu = poisoned<T>(N * OC), dpre_gelu = poisoned<T>(N * OC);
    this->prepare(N, C, OC);
    this->gemm->forward_gelu(out.data(), pre_gelu.data(), inp.data(), weight.data(), bias.data(), N, C, OC,
                             nullptr);
    this->prepare(N, OC, C2);
    this->gemm->backward_input_gelu(dpre_gelu.data(), dout_proj.data(), weight_proj.data(), pre_gelu.data(),
                                    N, OC, C2, nullptr);
    EXPECT_LE(relative_error(download(pre_gelu), dump.floats("pre_gelu")), tolerance);
    EXPECT_LE(relative_error(download(out), dump.floats("out")), tolerance);
    EXPECT_LE(relative_error(download(dpre_gelu), dump.floats("dpre_gelu")), tolerance);
}

TEST(Gemm, ABiasGradientThatAProductHasLeftIsAdded) {
    for (const size_t OC : {1, 33, 2304}) {
        SCOPED_TRACE(testing::Message() << "OC " << OC);
        const std::vector<float> before = random_values<float>(OC, 1), fused = random_values<float>(OC, 2);
        std::vector<float> expected(OC);
        for (size_t i = 0; i < OC; i++) expected[i] = before[i] + fused[i];
        const auto dbias = upload<float>(before), left = upload<float>(fused);
        gemm_add_bias_gradient(dbias.data(), left.data(), OC, nullptr);
        EXPECT_EQ(download(dbias), expected);
    }
}

// 1 + 2^-12 has two more bits of mantissa than TF32 keeps. A GPU must drop them if the option is given,
// and only then; the CPU never does.
TEST(Gemm, Tf32DropsBitsOnAGpuIfItIsAsked) {
    constexpr size_t size = 256;
    const auto inp = upload<float>(std::vector<float>(size * size, 1 + 0x1p-12f)),
               weight = upload<float>(std::vector<float>(size * size, 1));
    for (const bool tf32 : {false, true}) {
        SCOPED_TRACE(testing::Message() << "tf32 " << tf32);
        Gemm gemm({.tf32 = tf32});
        const simt::DeviceBuffer<char> workspace(Gemm::workspace_bytes<float>(size, size, size));
        gemm.use_workspace(workspace.data(), workspace.bytes());
        const auto out = poisoned<float>(size * size);
        gemm.forward<float>(out.data(), inp.data(), weight.data(), nullptr, size, size, size, nullptr);
        const float expected = size * (tf32 && simt::is_gpu() ? 1 : 1 + 0x1p-12f);
        EXPECT_EQ(download(out), std::vector<float>(size * size, expected));
    }
}

TEST(Gemm, SaysWhenTheWorkspaceIsTooSmall) {
    Gemm gemm({});
    alignas(256) char tiny[1];
    gemm.use_workspace(tiny, sizeof(tiny));
    const size_t N = 512, C = 128, OC = 512;
    const auto dout = poisoned<float>(N * OC), inp = poisoned<float>(N * C),
               dweight = poisoned<float>(OC * C), dbias = poisoned<float>(OC);
    try {
        gemm.backward_weight<float>(dweight.data(), dbias.data(), dout.data(), inp.data(), N, C, OC, true,
                                    nullptr);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("workspace"), std::string::npos) << error.what();
    }
}

}  // namespace
