// SwiGLU: forward and backward against plain_llama.h.
#include "common.cuh"
#include "kernels/swiglu.cuh"
#include "plain_llama.h"

namespace {

template <class W>
class Swiglu : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32, 64>;
TYPED_TEST_SUITE(Swiglu, Widths);

struct Shape {
    size_t N;
    int H;
};
const std::vector<Shape> shapes = {{1, 1}, {3, 7}, {5, 64}, {2, 1536}, {67, 80}, {1, 5461}};

template <class W, class T>
void expect_both_directions(const std::vector<float>& gate_up, const std::vector<float>& dout, size_t N,
                            int H) {
    SCOPED_TRACE(testing::Message() << "N = " << N << ", H = " << H);
    const size_t width = static_cast<size_t>(H), count = N * width;
    const auto gate_up_ = upload<T>(gate_up), dout_ = upload<T>(dout);
    auto out = poisoned<T>(count), dgate_up = poisoned<T>(2 * count), in_place = upload<T>(gate_up);
    swiglu_forward<W>(out.data(), gate_up_.data(), N, H, nullptr);
    swiglu_backward<W>(dgate_up.data(), dout_.data(), gate_up_.data(), N, H, nullptr);
    swiglu_backward<W>(in_place.data(), dout_.data(), in_place.data(), N, H, nullptr);

    std::vector<Bounded> expected(count), gradient(2 * count);
    plain::swiglu_forward(expected.data(), exact(gate_up).data(), N, width);
    plain::swiglu_backward(gradient.data(), exact(dout).data(), exact(gate_up).data(), N, width);
    expect_close<T>(download(out), expected);
    expect_close<T>(download(dgate_up), gradient);
    EXPECT_EQ(download(in_place), download(dgate_up));
}

TYPED_TEST(Swiglu, MatchesDoublePrecision) {
    for (const auto& [N, H] : shapes) {
        const size_t count = N * static_cast<size_t>(H);
        expect_both_directions<TypeParam, float>(random_values<float>(2 * count, 1, 2.5f),
                                                 random_values<float>(count, 2), N, H);
        expect_both_directions<TypeParam, bfloat16>(random_values<bfloat16>(2 * count, 1, 2.5f),
                                                    random_values<bfloat16>(count, 2), N, H);
    }
}

TYPED_TEST(Swiglu, TailsAreExact) {
    const std::vector<float> gates = {0.0f, -0.0f, 1e-30f, -1e-30f, 5, -5, 20, -20, 80, -80, 1e4f, -1e4f},
                             ones(gates.size(), 1.0f);
    std::vector<float> gate_up = gates;
    gate_up.insert(gate_up.end(), ones.begin(), ones.end());
    expect_both_directions<TypeParam, float>(gate_up, ones, 1, static_cast<int>(gates.size()));
}

TYPED_TEST(Swiglu, NaNStaysNaN) {
    const auto gate_up = poisoned<float>(6);
    auto out = upload<float>({1, 2, 3}), dgate_up = upload<float>({1, 2, 3, 4, 5, 6});
    swiglu_forward<TypeParam>(out.data(), gate_up.data(), 1, 3, nullptr);
    for (const float value : download(out)) EXPECT_TRUE(std::isnan(value));
    swiglu_backward<TypeParam>(dgate_up.data(), out.data(), gate_up.data(), 1, 3, nullptr);
    for (const float value : download(dgate_up)) EXPECT_TRUE(std::isnan(value));
}

TEST(SwigluShapes, EmptyOnesAreRefused) {
    float* none = nullptr;
    EXPECT_THROW(swiglu_forward(none, none, 0, 8, nullptr), UsageError);
    EXPECT_THROW(swiglu_backward(none, none, none, 8, 0, nullptr), UsageError);
}

}  // namespace
