// The bits of an elementwise kernel's result do not depend on whether whole vectors or the loop for the
// remainder compute it. Splits of a batch, and of the parameters between processes, rely on this. Where a sum
// has two products, a compiler that may choose which one to fuse can break it.
#include <bit>

#include "common.cuh"
#include "kernels/adamw.cuh"
#include "kernels/capped_cross_entropy.cuh"
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

// A CPU's thread has a share of 32 vectors. If the arrays are aligned, these elements are several shares of
// vectors and a remainder.
constexpr size_t elements = 2 * 32 * 32 + 21, arrays = 4;

// kernel(a, b, c, d, n) changes some of its arrays. The bits that they hold afterwards, if they begin
// `offset` elements behind an aligned address and n of their elements are computed.
template <class T, class Kernel>
std::vector<std::vector<uint32_t>> results(size_t offset, size_t n, Kernel kernel) {
    std::vector<simt::DeviceBuffer<T>> buffers;
    for (size_t i = 0; i < arrays; i++) {
        auto values = random_values<T>(elements, static_cast<unsigned>(i + 1));
        if (i == 3) std::ranges::transform(values, values.begin(), [](float x) { return std::abs(x); });
        values.insert(values.begin(), offset, 0.0f);
        buffers.push_back(upload<T>(values));
    }
    kernel(buffers[0].data() + offset, buffers[1].data() + offset, buffers[2].data() + offset,
           buffers[3].data() + offset, n);
    std::vector<std::vector<uint32_t>> after(arrays);
    for (size_t i = 0; i < arrays; i++) {
        const std::vector<float> values = download(buffers[i]);
        for (size_t k = 0; k < n; k++) after[i].push_back(std::bit_cast<uint32_t>(values[offset + k]));
    }
    return after;
}

// The same values in whole vectors, in a remainder that has no whole share before it, and, from an address at
// which no vector may begin, one by one.
template <class T, class Kernel>
void expect_the_same_bits(const char* name, Kernel kernel) {
    SCOPED_TRACE(name);
    auto whole = results<T>(0, elements, kernel);
    EXPECT_NE(whole, results<T>(0, elements, [](T*, T*, T*, T*, size_t) {})) << "nothing was computed";
    EXPECT_EQ(results<T>(1, elements, kernel), whole) << "one by one";
    const size_t remainder = 32 * 16 / sizeof(T) - 1;
    for (auto& values : whole) values.resize(remainder);
    EXPECT_EQ(results<T>(0, remainder, kernel), whole) << "in a remainder";
}

TYPED_TEST(Elementwise, AnElementsBitsDependOnItAlone) {
    using W = TypeParam;
    const auto of_activations = [&]<class T>(T) {
        expect_the_same_bits<T>("gelu",
                                [](T* out, T* x, T*, T*, size_t n) { gelu_forward<W>(out, x, n, nullptr); });
        expect_the_same_bits<T>(
            "gelu backward", [](T* dx, T* x, T*, T*, size_t n) { gelu_backward<W>(dx, dx, x, n, nullptr); });
        expect_the_same_bits<T>("relu2", [](T* x, T*, T*, T*, size_t n) { relu2_forward<W>(x, n, nullptr); });
        expect_the_same_bits<T>("cap", [](T* z, T*, T*, T*, size_t n) { cap_logits<W>(z, n, 15, nullptr); });
        expect_the_same_bits<T>("relu2 backward", [](T* dx, T*, T*, T* act, size_t n) {
            relu2_backward<W>(dx, dx, act, n, nullptr);
        });
    };
    of_activations(float{});
    of_activations(bfloat16{});
}

TYPED_TEST(Elementwise, AParametersUpdateDependsOnItAlone) {
    using W = TypeParam;
    const OptimizerState value{
        .lr = 1e-2, .step = 3, .scale = 0.59f, .bias_correction1 = 0.27f, .sqrt_bias_correction2 = 0.38f};
    simt::DeviceBuffer<OptimizerState> on_device(1);
    simt::copy_to_device(on_device.data(), &value, sizeof(value), nullptr);
    simt::stream_synchronize(nullptr);
    const OptimizerState* const state = on_device.data();
    for (const bool decoupled : {false, true}) {
        expect_the_same_bits<float>("adamw", [&](float* p, float* m, float* g, float* v, size_t n) {
            adamw_update<W>(p, p, m, v, g, n, {0.9, 0.95, 1e-8, 0.1, decoupled}, state, nullptr);
        });
    }
    for (const double momentum : {0.0, 0.9}) {
        expect_the_same_bits<float>("rmsprop", [&](float* p, float* b, float* g, float* v, size_t n) {
            rmsprop_update<W>(p, p, v, momentum > 0 ? b : nullptr, g, n, {0.95, 1e-8, momentum, 0.1}, state,
                              nullptr);
        });
        for (const bool nesterov : {false, true}) {
            expect_the_same_bits<float>("sgd", [&](float* p, float* b, float* g, float*, size_t n) {
                sgd_update<W>(p, p, momentum > 0 ? b : nullptr, g, n, {momentum, 0.1, nesterov}, state,
                              nullptr);
            });
        }
    }
    expect_the_same_bits<float>("muon's momentum", [&](float* u, float* m, float* g, float*, size_t n) {
        muon_momentum<W>(u, m, g, n, 0.95, state, nullptr);
    });
    expect_the_same_bits<float>("muon's norm",
                                [&](float* x, float* u, float*, float* norm_squared, size_t n) {
                                    muon_normalise<W>(x, u, n, norm_squared, nullptr);
                                });
    expect_the_same_bits<float>("muon's update", [&](float* p, float* x, float*, float*, size_t n) {
        muon_update<W>(p, p, x, n, 0.7, 0.1, state, nullptr);
    });
}

}  // namespace
