// test_gemm.cu: the forms of gemm.h against plain_gpt2.h.
#include "common.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_unfused.h"

namespace {

using Values = std::vector<Bounded>;

struct Shape {
    size_t N, C, OC;
};

// The operands of a linear layer: as they are for the oracle, and on the device.
template <class T>
struct Layer {
    const size_t N, C, OC;
    std::vector<float> inp = random_values<T>(N * C, 1),
                       weight = random_values<T>(OC * C, 2, 1 / std::sqrt(static_cast<float>(C))),
                       bias = random_values<T>(OC, 3), dout = random_values<T>(N * OC, 4);
    simt::DeviceBuffer<T> inp_ = upload<T>(inp), weight_ = upload<T>(weight), bias_ = upload<T>(bias),
                          dout_ = upload<T>(dout);

    explicit Layer(const Shape& s) : N(s.N), C(s.C), OC(s.OC) {}

    Values out(bool biased) const {
        Values out(N * OC);
        plain::matmul_forward(out.data(), exact(inp).data(), exact(weight).data(),
                              biased ? exact(bias).data() : nullptr, N, C, OC);
        return out;
    }
    // dinp is written, the others are added to.
    void backward(Values& dinp, Values& dweight, Values& dbias) const {
        dinp.resize(N * C);
        plain::matmul_backward(dinp.data(), dweight.data(), dbias.data(), exact(dout).data(),
                               exact(inp).data(), exact(weight).data(), N, C, OC);
    }
};

// fp32: 1e-5 and 8 roundings of the sum of magnitudes; bf16 rounds each stored element once.
template <class Stored>
void expect_matches(const simt::DeviceBuffer<Stored>& actual, const Values& expected) {
    EXPECT_LE(relative_error(download(actual), expected), (std::is_same_v<Stored, float> ? 1e-5 : 1e-2));
    expect_elements(download(actual), expected, epsilon<Stored>);
}

const Shape shapes[] = {{1, 8, 8},      {3, 768, 33},   {7, 5, 13},     {64, 128, 512},
                        {17, 72, 130},  {1, 1, 1},      {255, 96, 256}, {33, 1024, 40},
                        {34, 1024, 40}, {40, 40, 1024}, {130, 257, 48}, {600, 24, 100},
                        {2, 600, 1100}, {300, 260, 40}, {40, 260, 530}, {9, 2100, 70}};

template <class T_, Gemm::OnCpu on_cpu_>
struct Case {
    using T = T_;
    static constexpr Gemm::OnCpu on_cpu = on_cpu_;
    // The tests must know whether int8 products round inp, which `automatic` leaves open.
    static constexpr auto int8 = on_cpu == Gemm::OnCpu::automatic ? Gemm::OnCpu::library : on_cpu;
    static constexpr Gemm::Options options = std::is_same_v<T, float>
                                                 ? Gemm::Options{.fp32 = on_cpu}
                                                 : Gemm::Options{.bf16 = on_cpu, .int8 = int8};
};

// How product() scales and adds; the last two are Muon's.
struct Sum {
    float alpha, beta;
};
const Sum sums[] = {{1, 0}, {-0.5f, 0}, {0, 2}, {1, 1}, {2.0315f, -4.775f}, {1, 3.4445f}};

template <class Case>
class GemmTest : public testing::Test {
protected:
    using T = typename Case::T;
    std::unique_ptr<Gemm> gemm;
    simt::DeviceBuffer<char> workspace;

    void SetUp() override {
        if (simt::is_gpu() && Case::on_cpu == Gemm::OnCpu::packed)
            GTEST_SKIP() << "packed_product.h is for the CPU";
        try {
            gemm = std::make_unique<Gemm>(Case::options);
        } catch (const UsageError& error) {
            if (Case::on_cpu != Gemm::OnCpu::library) throw;
            GTEST_SKIP() << "a processor without AVX-512 has no products of bfloat16 of its own: "
                         << error.what();
        }
    }
    void prepare(size_t N, size_t C, size_t OC) {
        // With less than a product's own scratch the library's would be packed.
        workspace = poisoned<char>(std::max(Gemm::workspace_bytes<T>(N, C, OC),
                                            Case::on_cpu == Gemm::OnCpu::library ? size_t{1} << 24 : 0));
        gemm->use_workspace(workspace.data(), workspace.bytes());
    }
    template <class Test>
    void for_every_shape(Test test) {
        for (const Shape& s : shapes) {
            SCOPED_TRACE(testing::Message() << "N " << s.N << ", C " << s.C << ", OC " << s.OC);
            prepare(s.N, s.C, s.OC);
            test(Layer<T>(s));
        }
    }
};
using Cases = testing::Types<Case<float, Gemm::OnCpu::library>, Case<float, Gemm::OnCpu::packed>,
                             Case<float, Gemm::OnCpu::automatic>, Case<bfloat16, Gemm::OnCpu::library>,
                             Case<bfloat16, Gemm::OnCpu::packed>, Case<bfloat16, Gemm::OnCpu::automatic>>;
TYPED_TEST_SUITE(GemmTest, Cases);

// In fp32 a CPU packs every product(), so one case is enough.
template <class Case>
class GemmProductTest : public GemmTest<Case> {};
using ProductCases = testing::Types<Case<float, Gemm::OnCpu::automatic>, Case<bfloat16, Gemm::OnCpu::library>,
                                    Case<bfloat16, Gemm::OnCpu::packed>>;
TYPED_TEST_SUITE(GemmProductTest, ProductCases);

TYPED_TEST(GemmTest, ForwardMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    this->for_every_shape([&](const Layer<T>& l) {
        for (const bool biased : {false, true}) {
            const auto out = poisoned<T>(l.N * l.OC);
            this->gemm->forward(out.data(), l.inp_.data(), l.weight_.data(),
                                biased ? l.bias_.data() : nullptr, l.N, l.C, l.OC, nullptr);
            expect_matches(out, l.out(biased));
        }
    });
}

TYPED_TEST(GemmTest, ForwardGeluMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    this->for_every_shape([&](const Layer<T>& l) {
        const auto out = poisoned<T>(l.N * l.OC), pre_gelu = poisoned<T>(l.N * l.OC);
        this->gemm->forward(out.data(), l.inp_.data(), l.weight_.data(), l.bias_.data(), l.N, l.C, l.OC,
                            nullptr, Activation::gelu, pre_gelu.data());
        Values expected = l.out(true);
        expect_matches(pre_gelu, expected);
        // gelu's slope is at most 1.13: it passes on the error of pre_gelu, and adds one rounding
        for (Bounded& x : expected) x = {plain::gelu(x.value), 1.13 * x.size()};
        expect_matches(out, expected);
    });
}

// A weight of int8 and its scales.
struct Int8Matrix {
    std::vector<float> values, scales;
    simt::DeviceBuffer<int8_t> values_;
    simt::DeviceBuffer<float> scales_;

    Int8Matrix(size_t OC, size_t C) : scales(random_values<float>(OC, 8, 0.002f, 0.01f)) {
        std::mt19937 generator(7);
        for (size_t i = 0; i < OC * C; i++)
            values.push_back(static_cast<float>(static_cast<int>(generator() % 255) - 127));
        values_ = upload<int8_t>(values);
        scales_ = upload<float>(scales);
    }
    Gemm::Int8Weight weight() const { return {values_.data(), scales_.data()}; }
    Values dequantized() const {
        Values weight = exact(values);
        const size_t C = values.size() / scales.size();
        for (size_t i = 0; i < weight.size(); i++) weight[i].value *= scales[i / C];
        return weight;
    }
};

TYPED_TEST(GemmTest, ForwardInt8MatchesDoublePrecision) {
    using T = typename TypeParam::T;
    constexpr bool rounds_inp = std::is_same_v<T, bfloat16> && TypeParam::on_cpu == Gemm::OnCpu::packed;
    this->for_every_shape([&](const Layer<T>& l) {
        const Int8Matrix matrix(l.OC, l.C);
        auto scratch = poisoned<char>(Gemm::int8_scratch_bytes<T>(l.N, l.C, l.OC));
        const auto bytes = std::as_writable_bytes(std::span(scratch.data(), scratch.bytes()));
        const auto out = poisoned<T>(l.N * l.OC), sums = poisoned<T>(l.N * l.OC);
        const Values weight = matrix.dequantized();
        Values expected(l.N * l.OC);
        plain::matmul_forward(expected.data(), exact(l.inp).data(), weight.data(), exact(l.bias).data(), l.N,
                              l.C, l.OC);
        std::vector<double> bounds;
        for (size_t i = 0; i < expected.size(); i++) {
            bounds.push_back(8 * epsilon<T> * expected[i].size());
            if (!rounds_inp) continue;
            // Every element is off by half a step of its group at most, besides the rounding of the result.
            bounds[i] =
                8 * epsilon<float> * expected[i].size() + 1.01 * epsilon<T> * std::abs(expected[i].value);
            const float* const row = &l.inp[i / l.OC * l.C];
            for (size_t c = 0; c < l.C; c += 64) {
                double largest = 0, weights = 0;
                for (size_t k = c; k < std::min(c + 64, l.C); k++) {
                    largest = std::max(largest, std::abs(static_cast<double>(row[k])));
                    weights += std::abs(weight[i % l.OC * l.C + k].value);
                }
                bounds[i] += 0.5001 * largest / 127 * weights;
            }
        }
        const auto expect = [&](const auto& actual, double slope) {
            const std::vector<float> values = download(actual);
            for (size_t i = 0; i < values.size(); i++)
                ASSERT_NEAR(values[i], expected[i].value, slope * bounds[i] + 1e-37) << "element " << i;
            EXPECT_LE(relative_error(values, expected), (std::is_same_v<T, float> ? 1e-5
                                                         : rounds_inp             ? 1e-2
                                                                                  : 5e-3));
        };
        const auto product = [&](Activation activation) {
            this->gemm->forward_int8(out.data(), l.inp_.data(), matrix.weight(), l.bias_.data(), l.N, l.C,
                                     l.OC, bytes, nullptr, activation, sums.data());
        };
        product(Activation::none);
        expect(out, 1);
        product(Activation::gelu);
        expect(sums, 1);
        for (Bounded& x : expected) x.value = plain::gelu(x.value);
        expect(out, 1.2);  // gelu's slope is at most 1.13, and its result is rounded
        EXPECT_THROW(this->gemm->forward_int8(out.data(), l.inp_.data(), matrix.weight(), l.bias_.data(), l.N,
                                              l.C, l.OC, bytes.first(bytes.size() - 1), nullptr),
                     UsageError);
    });
}

TYPED_TEST(GemmTest, BackwardMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    this->for_every_shape([&](const Layer<T>& l) {
        const std::vector<float> dbias_before = random_values<float>(l.OC, 6);
        const auto dinp = poisoned<T>(l.N * l.C);
        const auto dweight = poisoned<float>(l.OC * l.C), dbias = upload<float>(dbias_before);
        this->gemm->backward_input(dinp.data(), l.dout_.data(), l.weight_.data(), l.N, l.C, l.OC, nullptr);
        this->gemm->backward_weight(dweight.data(), dbias.data(), l.dout_.data(), l.inp_.data(), l.N, l.C,
                                    l.OC, false, nullptr);
        Values dinp_expected, dweight_expected(l.OC * l.C), dbias_expected = exact(dbias_before), none(l.OC);
        l.backward(dinp_expected, dweight_expected, dbias_expected);
        expect_matches(dinp, dinp_expected);
        // fp32 for any T, and so exact to fp32
        expect_matches(dweight, dweight_expected);
        expect_matches(dbias, dbias_expected);

        this->gemm->backward_weight(dweight.data(), nullptr, l.dout_.data(), l.inp_.data(), l.N, l.C, l.OC,
                                    true, nullptr);
        l.backward(dinp_expected, dweight_expected, none);
        expect_matches(dweight, dweight_expected);
        expect_matches(dbias, dbias_expected);
    });
}

// Transposes each matrix (rows, columns) of a batch, which follow one another.
std::vector<float> transposed(const std::vector<float>& x, size_t rows, size_t columns) {
    std::vector<float> to(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        const size_t in = i % (rows * columns);
        to[i - in + in % columns * rows + in / columns] = x[i];
    }
    return to;
}
// Returns a (M, K) b (K, N) for each matrix of a batch, in double precision.
Values product_of(const Gemm::Product& p, const std::vector<float>& a, const std::vector<float>& b) {
    Values out(p.batch * p.M * p.N);
    for (size_t i = 0; i < out.size(); i++) {
        const size_t row = i / p.N, matrix = row / p.M;
        for (size_t k = 0; k < p.K; k++)
            out[i] += Bounded(a[row * p.K + k]) * Bounded(b[(matrix * p.K + k) * p.N + i % p.N]);
    }
    return out;
}
// Returns alpha product + beta add.
Values general_product(const Sum& sum, const Values& product, const std::vector<float>& add) {
    Values out(product.size());
    for (size_t i = 0; i < out.size(); i++)
        out[i] = Bounded(sum.alpha) * product[i] + Bounded(sum.beta) * Bounded(add[i]);
    return out;
}

// Both factors lie in memory as they are or transposed. The sum is rounded once; what beta = 0 does not read
// is poisoned.
TYPED_TEST(GemmProductTest, MatchesDoublePrecision) {
    using T = typename TypeParam::T;
    for (const auto& [M, K, N] : shapes) {
        const size_t batch = M * N * K < 100'000 ? 3 : 1;
        SCOPED_TRACE(testing::Message() << batch << " of M " << M << ", N " << N << ", K " << K);
        this->workspace = poisoned<char>(Gemm::product_workspace_bytes<T>(M, N, K));
        this->gemm->use_workspace(this->workspace.data(), this->workspace.bytes());
        const auto a = random_values<T>(batch * M * K, 1),
                   b = random_values<T>(batch * K * N, 2, 1 / std::sqrt(static_cast<float>(K))),
                   add = random_values<T>(batch * M * N, 3);
        const simt::DeviceBuffer<T> a_[2] = {upload<T>(a), upload<T>(transposed(a, M, K))},
                                    b_[2] = {upload<T>(b), upload<T>(transposed(b, K, N))},
                                    add_ = upload<T>(add), unread = poisoned<T>(batch * M * N);
        const Values product = product_of({.M = M, .N = N, .K = K, .batch = batch}, a, b);
        for (const auto& [alpha, beta] : sums) {
            const Gemm::Product shape{M, N, K, alpha, beta, batch};
            const Values expected = general_product({alpha, beta}, product, add);
            for (const bool turn_a : {false, true}) {
                for (const bool turn_b : {false, true}) {
                    SCOPED_TRACE(testing::Message() << "alpha " << alpha << ", beta " << beta << ", "
                                                    << (turn_a ? 'T' : 'N') << (turn_b ? 'T' : 'N'));
                    const auto out = poisoned<T>(batch * M * N);
                    this->gemm->template product<T>(shape, out.data(), {a_[turn_a].data(), turn_a},
                                                    {b_[turn_b].data(), turn_b}, nullptr,
                                                    beta == 0 ? unread.data() : add_.data());
                    expect_close(out, expected);
                }
            }
        }
    }
}

// A matrix times its own transpose, plus a symmetric one. On a CPU, which may compute half of it and a batch
// at once, the bits are those of the whole product of each matrix by itself.
TYPED_TEST(GemmProductTest, OfASymmetricResultMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    const bool halves =
        !simt::is_gpu() && (std::is_same_v<T, float> || TypeParam::on_cpu == Gemm::OnCpu::packed);
    constexpr size_t sizes[][3] = {{1, 1, 2},     {2, 5, 1},    {7, 300, 2},  {48, 16, 3},
                                   {130, 257, 1}, {257, 96, 2}, {300, 260, 1}};
    for (const auto& [M, K, batch] : sizes) {
        SCOPED_TRACE(testing::Message() << batch << " of M " << M << ", K " << K);
        this->workspace = poisoned<char>(Gemm::product_workspace_bytes<T>(M, M, K));
        this->gemm->use_workspace(this->workspace.data(), this->workspace.bytes());
        const auto a = random_values<T>(batch * M * K, 1, 1 / std::sqrt(static_cast<float>(K))),
                   a_turned = transposed(a, M, K);
        auto add = random_values<T>(batch * M * M, 3);
        const auto add_turned = transposed(add, M, M);
        for (size_t i = 0; i < add.size(); i++) {
            if (i / M % M < i % M) add[i] = add_turned[i];
        }
        const simt::DeviceBuffer<T> a_[2] = {upload<T>(a), upload<T>(a_turned)}, add_ = upload<T>(add),
                                    unread = poisoned<T>(batch * M * M);
        const Values product = product_of({.M = M, .N = M, .K = K, .batch = batch}, a, a_turned);
        for (const auto& [alpha, beta] : sums) {
            const Gemm::Product shape{M, M, K, alpha, beta, batch, true};
            const Values expected = general_product({alpha, beta}, product, add);
            for (const bool turn : {false, true}) {
                SCOPED_TRACE(testing::Message() << "alpha " << alpha << ", beta " << beta << ", " << turn);
                const auto out = poisoned<T>(batch * M * M);
                this->gemm->template product<T>(shape, out.data(), {a_[turn].data(), turn},
                                                {a_[turn].data(), !turn}, nullptr,
                                                beta == 0 ? unread.data() : add_.data());
                const std::vector<float> values = download(out);
                // The terms of the diagonal are squares, whose roundings do not cancel.
                expect_within(values, expected, [](Bounded e) {
                    constexpr double rounding = std::is_same_v<T, float> ? 0 : 1.01 * epsilon<T>;
                    return 16 * epsilon<float> * e.size() + rounding * std::abs(e.value);
                });
                EXPECT_LE(relative_error(values, expected), (std::is_same_v<T, float> ? 1e-5 : 1e-2));
                if (halves) { EXPECT_EQ(values, transposed(values, M, M)); }
                if (simt::is_gpu()) continue;
                const auto whole = poisoned<T>(batch * M * M);
                for (size_t at = 0; at < batch; at++)
                    this->gemm->template product<T>({M, M, K, alpha, beta}, whole.data() + at * M * M,
                                                    {a_[turn].data() + at * M * K, turn},
                                                    {a_[turn].data() + at * M * K, !turn}, nullptr,
                                                    add_.data() + at * M * M);
                EXPECT_EQ(values, download(whole));
            }
        }
    }
}

TYPED_TEST(GemmTest, BackwardInputGeluMatchesDoublePrecision) {
    using T = typename TypeParam::T;
    this->for_every_shape([&](const Layer<T>& l) {
        const std::vector<float> pre_gelu = random_values<T>(l.N * l.C, 5);
        const auto pre_gelu_ = upload<T>(pre_gelu);
        const auto dpre_gelu = poisoned<T>(l.N * l.C);
        this->gemm->backward_input(dpre_gelu.data(), l.dout_.data(), l.weight_.data(), l.N, l.C, l.OC,
                                   nullptr, Activation::gelu, pre_gelu_.data());
        Values expected, dweight(l.OC * l.C), dbias(l.OC);
        l.backward(expected, dweight, dbias);
        // the derivative multiplies the error of dinp, and has a few roundings of its own; next to its
        // zeros these are roundings of terms near 1
        for (size_t i = 0; i < expected.size(); i++) {
            const double slope = plain::gelu_derivative<double>(pre_gelu[i]);
            expected[i] = {slope * expected[i].value,
                           (std::abs(slope) + (std::is_same_v<T, float> ? 1.0 : 0.0)) * expected[i].size()};
        }
        expect_matches(dpre_gelu, expected);
    });
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
    const auto backward = [&] {
        gemm.backward_weight<float>(dweight.data(), dbias.data(), dout.data(), inp.data(), N, C, OC, true,
                                    nullptr);
    };
    EXPECT_TRUE(says(message_of<Error>(backward), "workspace"));
}

}  // namespace
