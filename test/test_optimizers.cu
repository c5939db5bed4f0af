// Every optimizer against torch.optim's (dev/reference.py): twenty steps of the kernels and of the whole
// model; the kernels against double precision; clipping; a step that must be skipped.
#include <limits>

#include "kernels/adamw.cuh"
#include "kernels/rmsprop.cuh"
#include "kernels/sgd.cuh"
#include "model.cuh"

namespace {

constexpr double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1;  // as in the dump

simt::DeviceBuffer<OptimizerState> state_after(int steps, double lr) {
    OptimizerState value{};
    value.lr = lr;
    value.step = steps;
    simt::DeviceBuffer<OptimizerState> state(1);
    simt::copy_to_device(state.data(), &value, sizeof(value), nullptr);
    simt::stream_synchronize(nullptr);
    return state;
}

struct Rule {
    const char* name;
    Optimizer optimizer;
    double momentum = 0;
    bool nesterov = false;

    size_t buffers() const { return optimizer_buffer_names(optimizer, momentum > 0).size(); }
};
const Rule rules[] = {{"adamw", Optimizer::adamw},
                      {"adam", Optimizer::adam},
                      {"sgd", Optimizer::sgd},
                      {"sgd_momentum", Optimizer::sgd, 0.9},
                      {"sgd_nesterov", Optimizer::sgd, 0.9, true},
                      {"rmsprop", Optimizer::rmsprop},
                      {"rmsprop_momentum", Optimizer::rmsprop, 0.9}};

template <class W, class T>
void update(const Rule& rule, T* params, float* master, float* first, float* second, const float* grads,
            size_t n, double weight_decay, const OptimizerState* state) {
    switch (rule.optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam:
            adamw_update<W>(params, master, first, second, grads, n,
                            {beta1, beta2, eps, weight_decay, rule.optimizer == Optimizer::adamw}, state,
                            nullptr);
            break;
        case Optimizer::sgd:
            sgd_update<W>(params, master, first, grads, n, {rule.momentum, weight_decay, rule.nesterov},
                          state, nullptr);
            break;
        case Optimizer::muon: throw Error("Muon updates whole matrices: test_muon.cu");
        case Optimizer::rmsprop:
            rmsprop_update<W>(params, master, first, second, grads, n,
                              {beta2, eps, rule.momentum, weight_decay}, state, nullptr);
            break;
    }
}

// A step of one parameter p with its two buffers.
void expected_step(const Rule& rule, Bounded& p, Bounded (&buffers)[2], Bounded g, int t) {
    if (rule.optimizer != Optimizer::adamw) g += decay * p;
    if (rule.optimizer == Optimizer::adamw || rule.optimizer == Optimizer::adam) {
        const double decoupled = rule.optimizer == Optimizer::adamw ? decay : 0;
        plain::adamw_update(&p, &buffers[0], &buffers[1], &g, 1, t, {lr, beta1, beta2, eps, decoupled});
        return;
    }
    const bool rmsprop = rule.optimizer == Optimizer::rmsprop;
    Bounded &square = buffers[0], &momentum = buffers[rmsprop ? 1 : 0];
    if (rmsprop) {
        square = beta2 * square + (1 - beta2) * g * g;
        g = g / (sqrt(square) + eps);
    }
    if (rule.momentum > 0) {
        momentum = rule.momentum * momentum + g;
        g = rule.nesterov ? g + rule.momentum * momentum : momentum;
    }
    p = p - lr * g;
}

template <class W>
class Optimizers : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Optimizers, Widths);

// The parameters of the dump, 35 with decay and 7 without, in one array. bfloat16: with a rounded copy.
template <class W, class T>
void test_against_pytorch(const Rule& rule) {
    SCOPED_TRACE(rule.name);
    const SafetensorsFile dump = reference("optimizers");
    const size_t weights = dump.floats("weight").size(), biases = dump.floats("bias").size(), bias_at = 48,
                 n = bias_at + biases;
    const auto joined = [&](const std::string& prefix, const std::string& suffix, size_t step) {
        std::vector<float> values(n);
        const auto w = dump.floats(prefix + "weight" + suffix), b = dump.floats(prefix + "bias" + suffix);
        std::copy_n(w.begin() + static_cast<ptrdiff_t>(step * weights), weights, values.begin());
        std::copy_n(b.begin() + static_cast<ptrdiff_t>(step * biases), biases,
                    values.begin() + static_cast<ptrdiff_t>(bias_at));
        return values;
    };
    const std::vector<std::string> names = optimizer_buffer_names(rule.optimizer, rule.momentum > 0);
    const auto master = upload<float>(joined("", "", 0));
    simt::DeviceBuffer<float> buffers[2];
    for (size_t i = 0; i < names.size(); i++) buffers[i] = upload<float>(std::vector<float>(n));
    auto copy = poisoned<bfloat16>(n);
    const auto state = state_after(0, lr);
    const auto grad_norm = dump.floats("grad_norm");
    for (size_t s = 0; s < grad_norm.size(); s++) {
        SCOPED_TRACE(testing::Message() << "step " << s + 1);
        const auto grads = upload<float>(joined("grad.", "", s)),
                   norm = upload<float>(std::vector<float>{grad_norm[s] * grad_norm[s]});
        optimizer_prepare<W>(state.data(), norm.data(), 1.0f, beta1, beta2, nullptr);
        const auto both = [&](auto* params) {
            const auto at = [&](int i, size_t offset) {
                return buffers[i].size() ? buffers[i].data() + offset : nullptr;
            };
            update<W>(rule, params, master.data(), at(0, 0), at(1, 0), grads.data(), weights, decay,
                      state.data());
            update<W>(rule, params + bias_at, master.data() + bias_at, at(0, bias_at), at(1, bias_at),
                      grads.data() + bias_at, biases, 0.0, state.data());
        };
        if constexpr (std::is_same_v<T, float>) both(master.data());
        else both(copy.data());
        // Twenty steps' rounding of numbers near 1, each step one unit at most.
        EXPECT_LE(relative_error(download(master), joined(std::string(rule.name) + ".", ".after", s)), 2e-6);
    }
    for (size_t i = 0; i < names.size(); i++) {
        EXPECT_LE(relative_error(download(buffers[i]),
                                 joined(std::string(rule.name) + "." + names[i] + ".", "", 0)),
                  1e-5)
            << names[i];
    }
    if constexpr (!std::is_same_v<T, float>) {
        const auto copies = download(copy), masters = download(master);
        for (size_t i = 0; i < n; i++) {
            if (i < weights || i >= bias_at) EXPECT_EQ(copies[i], static_cast<float>(T(masters[i]))) << i;
            else EXPECT_TRUE(std::isnan(copies[i])) << i;
        }
    }
}
TYPED_TEST(Optimizers, TwentyStepsMatchPyTorch) {
    for (const Rule& rule : rules) {
        test_against_pytorch<TypeParam, float>(rule);
        test_against_pytorch<TypeParam, bfloat16>(rule);
    }
}

// Step t on random state: whole vectors and a remainder, aligned or not.
template <class W, class T>
void test_against_oracle(const Rule& rule, size_t n, size_t offset, double clip, int t) {
    SCOPED_TRACE(testing::Message() << rule.name << ", n = " << n << ", offset = " << offset
                                    << ", clip = " << clip << ", step " << t);
    const size_t count = n + offset;
    auto p = random_values<float>(count, 1), g = random_values<float>(count, 2);
    std::vector<float> before[2] = {random_values<float>(count, 3, 0.1f),
                                    random_values<float>(count, 4, 0.1f)};
    // a mean of squares
    for (float& value : before[rule.optimizer == Optimizer::rmsprop ? 0 : 1]) value *= value;
    // here eps is the larger part
    for (size_t i = 2; i < count; i += 5) p[i] = before[0][i] = before[1][i] = 0, g[i] = 1e-9f;
    const auto master = upload<float>(p), grads = upload<float>(g),
               norm = upload<float>(std::vector<float>{9.0f});
    const simt::DeviceBuffer<float> buffers[2] = {upload<float>(before[0]), upload<float>(before[1])};
    auto params = poisoned<T>(count);
    const auto state = state_after(t - 1, lr);
    optimizer_prepare<W>(state.data(), norm.data(), static_cast<float>(clip), beta1, beta2, nullptr);
    const auto at = [&](size_t i) { return i < rule.buffers() ? buffers[i].data() + offset : nullptr; };
    update<W>(rule, params.data() + offset, master.data() + offset, at(0), at(1), grads.data() + offset, n,
              decay, state.data());

    std::vector<Bounded> p_expected = exact(p), expected[2] = {exact(before[0]), exact(before[1])};
    const double scale = clip > 0 ? plain::clipping(3.0, clip) : 1.0;
    for (size_t i = offset; i < count; i++) {
        Bounded of_element[2] = {expected[0][i], expected[1][i]};
        expected_step(rule, p_expected[i], of_element, scale * Bounded(g[i]), t);
        for (int b = 0; b < 2; b++) expected[b][i] = of_element[b];
    }
    expect_close(master, p_expected);
    for (int b = 0; b < 2; b++) expect_close(buffers[b], expected[b]);
    const auto masters = download(master), copies = download(params);
    for (size_t i = offset; i < count; i++) ASSERT_EQ(copies[i], static_cast<float>(T(masters[i]))) << i;
    for (size_t i = 0; i < offset; i++) EXPECT_TRUE(std::isnan(copies[i])) << "wrote in front of the range";
}
TYPED_TEST(Optimizers, MatchDoublePrecision) {
    for (const Rule& rule : rules) {
        for (const size_t n : {1, 8, 33, 3001}) {
            for (const size_t offset : {0, 1}) {
                test_against_oracle<TypeParam, float>(rule, n, offset, 1.0, 1);
                test_against_oracle<TypeParam, bfloat16>(rule, n, offset, 4.0, 5);
            }
        }
        test_against_oracle<TypeParam, float>(rule, 100, 0, 0.0, 2);
        test_against_oracle<TypeParam, float>(rule, 100, 0, 1.0, 1000000);
    }
}

// torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6: a small norm shows it.
TYPED_TEST(Optimizers, ClippingIsTorchs) {
    const auto scale = [](float norm, float clip) {
        const auto state = state_after(0, 1e-3);
        const auto norm_squared = upload<float>(std::vector<float>{norm * norm});
        optimizer_prepare<TypeParam>(state.data(), norm_squared.data(), clip, beta1, beta2, nullptr);
        return download_raw(state)[0].scale;
    };
    EXPECT_NEAR(scale(1e-6f, 1e-6f), 0.5f, 1e-6f);
    EXPECT_NEAR(scale(3.0f, 1.5f), 0.5f, 1e-6f);
    EXPECT_EQ(scale(0.5f, 1.5f), 1.0f);
    EXPECT_EQ(scale(3.0f, 0.0f), 1.0f);
    EXPECT_EQ(scale(0.0f, 1.0f), 1.0f);
}

TYPED_TEST(Optimizers, ANormThatIsNotFiniteChangesNothing) {
    const auto before = random_values<float>(100, 1);
    for (const Rule& rule : rules) {
        SCOPED_TRACE(rule.name);
        const auto state = state_after(7, lr);
        const auto master = upload<float>(before), first = upload<float>(before),
                   second = upload<float>(before);
        const auto copy = upload<bfloat16>(before);
        const auto copy_before = download(copy);
        const auto step = [&](float norm_squared) {
            const auto norm = upload<float>(std::vector<float>{norm_squared}),
                       grads = upload<float>(std::vector<float>(100, std::sqrt(norm_squared / 100)));
            optimizer_prepare<TypeParam>(state.data(), norm.data(), 1.0f, beta1, beta2, nullptr);
            update<TypeParam>(rule, copy.data(), master.data(), rule.buffers() > 0 ? first.data() : nullptr,
                              rule.buffers() > 1 ? second.data() : nullptr, grads.data(), 100, decay,
                              state.data());
        };
        for (const float bad :
             {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
            step(bad);
            EXPECT_EQ(download(master), before);
            EXPECT_EQ(download(first), before);
            EXPECT_EQ(download(second), before);
            EXPECT_EQ(download(copy), copy_before);
            EXPECT_EQ(download_raw(state)[0].step, 7);
        }
        step(1.0f);
        EXPECT_NE(download(master), before);
        EXPECT_EQ(download_raw(state)[0].step, 8);
    }
}

// The whole model: parameters with and without decay, the buffers of every range, clipping by the norm
// over all of them.
TEST(Optimizers, TheModelFollowsPyTorchForTwentySteps) {
    const SafetensorsFile dump = reference("optimizers"), weights = reference("model");
    const Trajectory batches;
    for (const Rule& rule : rules) {
        SCOPED_TRACE(rule.name);
        const auto model =
            reference_model<float>(weights, {.optimizer = rule.optimizer, .momentum = rule.momentum > 0});
        const std::vector<float> losses = dump.floats(std::string("model.") + rule.name + ".loss"),
                                 norms = dump.floats(std::string("model.") + rule.name + ".grad_norm");
        ASSERT_EQ(losses.size(), 20u);
        const size_t steps = simt::checked ? 3 : losses.size();
        for (size_t step = 0; step < steps; step++) {
            const StepResult result = train_step(*model, batches.at(static_cast<int>(step % 10)),
                                                 {.lr = rule.optimizer == Optimizer::sgd ? 0.1 : 1e-3,
                                                  .beta1 = beta1,
                                                  .beta2 = beta2,
                                                  .eps = eps,
                                                  .weight_decay = decay,
                                                  .clip = 1.0,
                                                  .momentum = rule.momentum,
                                                  .nesterov = rule.nesterov});
            ASSERT_NEAR(result.loss / losses[step], 1.0, 1e-5) << "step " << step + 1;
            ASSERT_NEAR(result.grad_norm / norms[step], 1.0, 1e-4) << "step " << step + 1;
        }
    }
}

TEST(Optimizers, OnlyTheBuffersInUseAreAllocated) {
    const auto names = [](const Rule& rule) {
        return optimizer_buffer_names(rule.optimizer, rule.momentum > 0);
    };
    using Names = std::vector<std::string>;
    EXPECT_EQ(names(rules[0]), (Names{"exp_avg", "exp_avg_sq"}));
    EXPECT_EQ(names(rules[1]), (Names{"exp_avg", "exp_avg_sq"}));
    EXPECT_EQ(names(rules[2]), Names{});
    EXPECT_EQ(names(rules[3]), Names{"momentum_buffer"});
    EXPECT_EQ(names(rules[5]), Names{"square_avg"});
    EXPECT_EQ(names(rules[6]), (Names{"square_avg", "momentum_buffer"}));
    for (const Rule& rule : rules) {
        const Model<float> model(
            make_family<float>(reference_config),
            {.B = 1, .T = 8, .total_batch = 8, .optimizer = rule.optimizer, .momentum = rule.momentum > 0});
        const size_t one = model.table().elements() * sizeof(float);
        const size_t bytes = bytes_of(model.memory_plan(), "optimizer state (fp32)");
        EXPECT_GE(bytes, one * rule.buffers()) << rule.name;
        EXPECT_LT(bytes, one * rule.buffers() + 4096) << rule.name;
    }
}

}  // namespace
