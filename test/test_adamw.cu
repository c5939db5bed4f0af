// AdamW with clipping: ten steps against PyTorch's, one step against double precision, and a step that
// must be skipped
#include <limits>

#include "common.cuh"
#include "kernels/adamw.cuh"
#include "kernels/global_norm.cuh"
#include "optimizer_state_on_device.cuh"

namespace {

using Values = std::vector<double>;

template <class W>
class AdamW : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(AdamW, Widths);

// The parameters of the dump, 35 with decay and 7 without, in one array; T is the type of their rounded
// copy, which does not exist if the parameters are the masters.
template <class W, class T, bool Separate>
void test_against_pytorch() {
    const SafetensorsFile dump = reference("adamw");
    const size_t weights = dump.floats("weight").size(), biases = dump.floats("bias").size(), bias_at = 48;
    const auto lr = dump.floats("lr"), grad_norm = dump.floats("grad_norm");
    const auto joined = [&](const std::string& weight, const std::string& bias, size_t step) {
        std::vector<float> values(bias_at + biases);
        const auto w = dump.floats(weight), b = dump.floats(bias);
        std::copy_n(w.begin() + static_cast<ptrdiff_t>(step * weights), weights, values.begin());
        std::copy_n(b.begin() + static_cast<ptrdiff_t>(step * biases), biases,
                    values.begin() + static_cast<ptrdiff_t>(bias_at));
        return values;
    };
    const size_t n = bias_at + biases;
    const auto master = upload<float>(joined("weight", "bias", 0)), m = upload<float>(std::vector<float>(n)),
               v = upload<float>(std::vector<float>(n));
    auto copy = poisoned<T>(n);
    auto norm = poisoned<float>(1), scratch = poisoned<float>(global_norm_scratch(n));
    const auto state = state_after(0, 0.0);
    for (size_t s = 0; s < lr.size(); s++) {
        SCOPED_TRACE(testing::Message() << "step " << s + 1);
        const auto grads = upload<float>(joined("grad.weight", "grad.bias", s));
        set_learning_rate(state, lr[s]);
        AdamWStep step{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
        global_norm_squared<simt::NativeWidth<512>>(norm.data(), scratch.data(), grads.data(), n, nullptr);
        optimizer_prepare<W>(state.data(), norm.data(), 1.0f, step.beta1, step.beta2, nullptr);
        const auto update = [&](auto* params) {
            adamw_update<W>(params, master.data(), m.data(), v.data(), grads.data(), weights, step,
                            state.data(), nullptr);
            step.weight_decay = 0;
            adamw_update<W>(params + bias_at, master.data() + bias_at, m.data() + bias_at, v.data() + bias_at,
                            grads.data() + bias_at, biases, step, state.data(), nullptr);
        };
        if constexpr (Separate) update(copy.data());
        else update(master.data());

        EXPECT_LE(relative_error(download(master), joined("weight.after", "bias.after", s)), 5e-7);
        EXPECT_LE(relative_error(download(m), joined("exp_avg.weight", "exp_avg.bias", s)), 1e-6);
        EXPECT_LE(relative_error(download(v), joined("exp_avg_sq.weight", "exp_avg_sq.bias", s)), 2e-6);
        EXPECT_NEAR(download_state(state).grad_norm / grad_norm[s], 1.0, 1e-6);
        EXPECT_EQ(download_state(state).step, static_cast<int>(s) + 1);
        if constexpr (Separate) {
            const auto params = download(copy), masters = download(master);
            for (size_t i = 0; i < n; i++) {
                if (i < weights || i >= bias_at) EXPECT_EQ(params[i], static_cast<float>(T(masters[i]))) << i;
                else EXPECT_TRUE(std::isnan(params[i])) << i;
            }
        }
    }
}
TYPED_TEST(AdamW, TenStepsMatchPyTorch) {
    test_against_pytorch<TypeParam, float, false>();
    test_against_pytorch<TypeParam, float, true>();
    test_against_pytorch<TypeParam, bfloat16, true>();
}

// A late step on random moments, whole vectors and a remainder, aligned or not. clip: 0, a value that
// limits the norm, a value that does not.
template <class W, class T>
void test_against_oracle(size_t n, size_t offset, int steps_before, double clip) {
    SCOPED_TRACE(testing::Message() << "n = " << n << ", offset = " << offset << ", step " << steps_before + 1
                                    << ", clip = " << clip);
    const AdamWStep step{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
    const size_t count = n + offset;
    const auto p = random_values<float>(count, 1), m = random_values<float>(count, 2, 1e-2f),
               g = random_values<float>(count, 3, 1e-1f);
    auto v = random_values<float>(count, 4, 1e-2f);
    for (float& value : v) value *= value;
    const auto p_ = upload<float>(p), m_ = upload<float>(m), v_ = upload<float>(v), g_ = upload<float>(g),
               norm = upload<float>(std::vector<float>{9.0f});
    auto params = poisoned<T>(count);
    const auto state = state_after(steps_before, 3e-4);
    optimizer_prepare<W>(state.data(), norm.data(), static_cast<float>(clip), step.beta1, step.beta2,
                         nullptr);
    adamw_update<W>(params.data() + offset, p_.data() + offset, m_.data() + offset, v_.data() + offset,
                    g_.data() + offset, n, step, state.data(), nullptr);

    Values p_expected(p.begin(), p.end()), m_expected(m.begin(), m.end()), v_expected(v.begin(), v.end()),
        p_magnitude(count), m_magnitude(count), v_magnitude(count);
    const double scale = clip > 0 ? std::min(1.0, clip / (3.0 + 1e-6)) : 1.0, t = steps_before + 1;
    for (size_t i = 0; i < count; i++) {
        p_magnitude[i] = std::abs(p[i]), m_magnitude[i] = std::abs(m[i]), v_magnitude[i] = v[i];
        if (i < offset) continue;
        const double gradient = g[i] * scale;
        m_expected[i] = 0.9 * m[i] + 0.1 * gradient;
        m_magnitude[i] = std::abs(m[i]) + std::abs(gradient);
        v_expected[i] = v_magnitude[i] = 0.999 * v[i] + 0.001 * gradient * gradient;
        const double denominator = std::sqrt(v_expected[i] / (1 - std::pow(0.999, t))) + 1e-8,
                     rate = 3e-4 / (1 - std::pow(0.9, t));
        p_expected[i] = p[i] * (1 - 3e-4 * 0.1) - rate * m_expected[i] / denominator;
        p_magnitude[i] = std::abs(p[i]) + rate * m_magnitude[i] / denominator;
    }
    expect_close<float>(download(p_), p_expected, p_magnitude);
    expect_close<float>(download(m_), m_expected, m_magnitude);
    expect_close<float>(download(v_), v_expected, v_magnitude);
    const auto masters = download(p_), copies = download(params);
    for (size_t i = offset; i < count; i++) ASSERT_EQ(copies[i], static_cast<float>(T(masters[i]))) << i;
    for (size_t i = 0; i < offset; i++) EXPECT_TRUE(std::isnan(copies[i])) << "wrote in front of the range";
}
TYPED_TEST(AdamW, MatchesDoublePrecision) {
    for (const size_t n : {1, 8, 33, 3001}) {
        for (const size_t offset : {0, 1}) {
            test_against_oracle<TypeParam, float>(n, offset, 0, 1.0);
            test_against_oracle<TypeParam, bfloat16>(n, offset, 1000, 1.0);
        }
    }
    test_against_oracle<TypeParam, float>(100, 0, 999999, 4.0);
    test_against_oracle<TypeParam, float>(100, 0, 1, 0.0);
}

// torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6: a small norm shows it.
TYPED_TEST(AdamW, ClippingIsTorchs) {
    const auto scale = [](float norm, float clip) {
        const auto state = state_after(0, 1e-3);
        const auto norm_squared = upload<float>(std::vector<float>{norm * norm});
        optimizer_prepare<TypeParam>(state.data(), norm_squared.data(), clip, 0.9, 0.95, nullptr);
        return download_state(state).scale;
    };
    EXPECT_NEAR(scale(1e-6f, 1e-6f), 0.5f, 1e-6f);
    EXPECT_NEAR(scale(3.0f, 1.5f), 0.5f, 1e-6f);
    EXPECT_EQ(scale(0.5f, 1.5f), 1.0f);
    EXPECT_EQ(scale(3.0f, 0.0f), 1.0f);
    EXPECT_EQ(scale(0.0f, 1.0f), 1.0f);
}

TYPED_TEST(AdamW, ANormThatIsNotFiniteChangesNothing) {
    const AdamWStep step{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const auto before = random_values<float>(100, 1);
    const auto state = state_after(7, 1e-3);
    const auto master = upload<float>(before), m = upload<float>(before), v = upload<float>(before);
    const auto copy = upload<bfloat16>(before);
    const auto copy_before = download(copy);
    const auto run = [&](float norm_squared) {
        const auto norm = upload<float>(std::vector<float>{norm_squared}),
                   grads = upload<float>(std::vector<float>(100, std::sqrt(norm_squared / 100)));
        optimizer_prepare<TypeParam>(state.data(), norm.data(), 1.0f, step.beta1, step.beta2, nullptr);
        adamw_update<TypeParam>(copy.data(), master.data(), m.data(), v.data(), grads.data(), 100, step,
                                state.data(), nullptr);
    };
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        run(bad);
        EXPECT_EQ(download(master), before);
        EXPECT_EQ(download(m), before);
        EXPECT_EQ(download(v), before);
        EXPECT_EQ(download(copy), copy_before);
        EXPECT_EQ(download_state(state).step, 7);
        EXPECT_FALSE(std::isfinite(download_state(state).grad_norm));
    }
    run(1.0f);
    EXPECT_NE(download(master), before);
    EXPECT_EQ(download_state(state).step, 8);
}

}  // namespace
