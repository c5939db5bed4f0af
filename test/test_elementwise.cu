// The bits that an elementwise kernel gives depend on the element alone: not on whether whole vectors or the
// loop behind them compute it. Splits of a batch, and of the parameters between processes, rely on it. A
// compiler may break it, where a sum has two products and it chooses which of them to fuse.
#include "common.cuh"
#include "kernels/adamw.cuh"
#include "kernels/gelu.cuh"
#include "kernels/muon.cuh"
#include "kernels/relu2.cuh"
#include "kernels/rmsprop.cuh"
#include "kernels/sgd.cuh"

namespace {

template <class W>
class Elementwise : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Elementwise, Widths);

// Two shares of a CPU's thread, which compute vectors where the arrays are aligned, and then a remainder.
constexpr size_t n = 2 * 32 * 32 + 21, arrays = 4;

// kernel(a, b, c, d, n) changes some of its arrays. What they hold afterwards, if the arrays begin `offset`
// elements behind an aligned address.
template <class T, class Kernel>
std::vector<std::vector<float>> results(size_t offset, Kernel kernel) {
    std::vector<simt::DeviceBuffer<T>> buffers;
    for (size_t i = 0; i < arrays; i++) {
        auto values = random_values<T>(n, static_cast<unsigned>(i + 1));
        if (i == 3) std::ranges::transform(values, values.begin(), [](float x) { return std::abs(x); });
        values.insert(values.begin(), offset, 0.0f);
        buffers.push_back(upload<T>(values));
    }
    kernel(buffers[0].data() + offset, buffers[1].data() + offset, buffers[2].data() + offset,
           buffers[3].data() + offset);
    std::vector<std::vector<float>> after;
    for (const auto& buffer : buffers) {
        const std::vector<float> values = download(buffer);
        after.emplace_back(values.begin() + static_cast<ptrdiff_t>(offset), values.end());
    }
    return after;
}

// The same values as whole vectors and, from an address of no vector, one by one.
template <class T, class Kernel>
void expect_the_same_bits(const char* name, Kernel kernel) {
    EXPECT_EQ(results<T>(0, kernel), results<T>(1, kernel)) << name;
}

TYPED_TEST(Elementwise, AnElementsBitsDependOnItAlone) {
    using W = TypeParam;
    const auto of_activations = [&]<class T>(T) {
        expect_the_same_bits<T>("gelu", [](T* out, T* x, T*, T*) { gelu_forward<W>(out, x, n, nullptr); });
        expect_the_same_bits<T>("gelu backward",
                                [](T* dx, T* x, T*, T*) { gelu_backward<W>(dx, dx, x, n, nullptr); });
        expect_the_same_bits<T>("relu2", [](T* x, T*, T*, T*) { relu2_forward<W>(x, n, nullptr); });
        expect_the_same_bits<T>("relu2 backward",
                                [](T* dx, T*, T*, T* act) { relu2_backward<W>(dx, dx, act, n, nullptr); });
    };
    of_activations(float{});
    of_activations(bfloat16{});
}

TYPED_TEST(Elementwise, AParametersUpdateDependsOnItAlone) {
    using W = TypeParam;
    const OptimizerState value{.lr = 1e-2,
                               .step = 3,
                               .grad_norm = 1.7f,
                               .scale = 0.59f,
                               .bias_correction1 = 0.27f,
                               .sqrt_bias_correction2 = 0.38f};
    simt::DeviceBuffer<OptimizerState> on_device(1);
    simt::copy_to_device(on_device.data(), &value, sizeof(value), nullptr);
    simt::stream_synchronize(nullptr);
    const OptimizerState* const state = on_device.data();
    for (const bool decoupled : {false, true}) {
        expect_the_same_bits<float>("adamw", [&](float* p, float* m, float* g, float* v) {
            adamw_update<W>(p, p, m, v, g, n, {0.9, 0.95, 1e-8, 0.1, decoupled}, state, nullptr);
        });
    }
    for (const double momentum : {0.0, 0.9}) {
        expect_the_same_bits<float>("rmsprop", [&](float* p, float* b, float* g, float* v) {
            rmsprop_update<W>(p, p, v, b, g, n, {0.95, 1e-8, momentum, 0.1}, state, nullptr);
        });
        for (const bool nesterov : {false, true}) {
            expect_the_same_bits<float>("sgd", [&](float* p, float* b, float* g, float*) {
                sgd_update<W>(p, p, b, g, n, {momentum, 0.1, nesterov}, state, nullptr);
            });
        }
    }
    expect_the_same_bits<float>("muon's momentum", [&](float* u, float* m, float* g, float*) {
        muon_momentum<W>(u, m, g, n, 0.95, state, nullptr);
    });
    expect_the_same_bits<float>("muon's norm", [&](float* x, float* u, float*, float* norm_squared) {
        muon_normalise<W>(x, u, n, norm_squared, nullptr);
    });
    expect_the_same_bits<float>("muon's update", [&](float* p, float* x, float*, float*) {
        muon_update<W>(p, p, x, n, 0.7, 0.1, state, nullptr);
    });
}

}  // namespace
