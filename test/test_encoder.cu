// Token plus position embedding: forward and backward against plain_gpt2.h.
#include <algorithm>
#include <numeric>

#include "common.cuh"
#include "kernels/encoder.cuh"

namespace {

struct Shape {
    int B, T, C, V;
};
const std::vector<Shape> shapes = {
    {1, 1, 8, 3}, {3, 7, 9, 11}, {2, 67, 768, 50}, {5, 33, 72, 400}, {2, 16, 1600, 5}};

std::vector<int> tokens_of(const Shape& s) { return random_tokens(s.B * s.T, s.V, 1); }

std::vector<int> sorted_positions(const std::vector<int>& tokens) {
    std::vector<int> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
    });
    return order;
}

template <class W>
class Encoder : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Encoder, Widths);

template <class W, class T>
void test_forward() {
    for (const Shape& s : shapes) {
        SCOPED_TRACE(testing::Message() << "B = " << s.B << ", T = " << s.T << ", C = " << s.C);
        const size_t C = static_cast<size_t>(s.C), max_T = static_cast<size_t>(s.T) + 3;
        const std::vector<int> tokens = tokens_of(s);
        const auto wte = random_values<T>(static_cast<size_t>(s.V) * C, 2),
                   wpe = random_values<T>(max_T * C, 3);
        const auto tokens_ = upload(tokens);
        const auto wte_ = upload<T>(wte), wpe_ = upload<T>(wpe);
        auto out = poisoned<T>(tokens.size() * C);
        encoder_forward<W>(out.data(), tokens_.data(), wte_.data(), wpe_.data(), s.B, s.T, s.C, nullptr);
        std::vector<float> expected(tokens.size() * C);
        plain::encoder_forward(expected.data(), tokens.data(), wte.data(), wpe.data(), tokens.size(),
                               static_cast<size_t>(s.T), C);
        for (float& sum : expected) sum = static_cast<float>(T(sum));  // rounded once
        EXPECT_EQ(download(out), expected);
    }
}
TYPED_TEST(Encoder, ForwardIsTheRoundedSum) {
    test_forward<TypeParam, float>();
    test_forward<TypeParam, bfloat16>();
}

template <class W, class T>
void test_backward(const Shape& s, const std::vector<int>& tokens) {
    SCOPED_TRACE(testing::Message() << "B = " << s.B << ", T = " << s.T << ", C = " << s.C);
    const size_t C = static_cast<size_t>(s.C);
    const auto dout = random_values<T>(tokens.size() * C, 2);
    const auto dwte = random_values<float>(static_cast<size_t>(s.V) * C, 3),
               dwpe = random_values<float>((static_cast<size_t>(s.T) + 3) * C, 4);
    const auto tokens_ = upload(tokens), order = upload(sorted_positions(tokens));
    const auto dout_ = upload<T>(dout);
    const auto dwte_ = upload<float>(dwte), dwpe_ = upload<float>(dwpe);
    encoder_backward<W>(dwte_.data(), dwpe_.data(), dout_.data(), tokens_.data(), order.data(), s.B, s.T, s.C,
                        nullptr);
    auto dwte_expected = exact(dwte), dwpe_expected = exact(dwpe);
    plain::encoder_backward(dwte_expected.data(), dwpe_expected.data(), exact(dout).data(), tokens.data(),
                            tokens.size(), static_cast<size_t>(s.T), C);
    expect_close(dwte_, dwte_expected);
    expect_close(dwpe_, dwpe_expected);
}
TYPED_TEST(Encoder, BackwardMatchesDoublePrecision) {
    for (const Shape& s : shapes) {
        test_backward<TypeParam, float>(s, tokens_of(s));
        test_backward<TypeParam, bfloat16>(s, tokens_of(s));
    }
}
TYPED_TEST(Encoder, BackwardIsRightWhenOneTokenFillsTheBatch) {
    const Shape s{4, 64, 136, 7};
    const std::vector<int> tokens(static_cast<size_t>(s.B * s.T), 6);
    test_backward<TypeParam, float>(s, tokens);
    test_backward<TypeParam, bfloat16>(s, tokens);
}

// The GPU's width adds up runs of equal tokens, sorted: up to 32 by one warp, longer ones by a block; here
// they begin and end at all kinds of places.
TYPED_TEST(Encoder, BackwardIsRightForRunsOfEveryLength) {
    const Shape s{8, 64, 72, 20};
    std::vector<int> tokens;
    int token = 0;
    for (const size_t length : {5, 32, 33, 27, 63, 64, 65, 1, 96, 31, 95})
        tokens.insert(tokens.end(), length, token++);
    ASSERT_EQ(tokens.size(), static_cast<size_t>(s.B * s.T));
    std::shuffle(tokens.begin(), tokens.end(), std::mt19937(1));
    test_backward<TypeParam, float>(s, tokens);
    test_backward<TypeParam, bfloat16>(s, tokens);
}

}  // namespace
