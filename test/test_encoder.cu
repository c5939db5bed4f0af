// Token plus position embedding: forward and backward against double precision, and that against PyTorch.
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

using Values = std::vector<double>;

std::vector<int> random_tokens(const Shape& s, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<int> tokens(static_cast<size_t>(s.B * s.T));
    for (int& token : tokens) token = static_cast<int>(generator() % static_cast<unsigned>(s.V));
    return tokens;
}

std::vector<int> sorted_positions(const std::vector<int>& tokens) {
    std::vector<int> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
    });
    return order;
}

struct Sum {
    Values value, magnitude;
    explicit Sum(const std::vector<float>& before) {
        for (const float v : before) value.push_back(v), magnitude.push_back(std::abs(v));
    }
    void add(size_t i, double term) { value[i] += term, magnitude[i] += std::abs(term); }
};

// Adds the gradients of wte and wpe to their previous values.
void backward(Sum& dwte, Sum& dwpe, const std::vector<float>& dout, const std::vector<int>& tokens, size_t T,
              size_t C) {
    for (size_t n = 0; n < tokens.size(); n++) {
        for (size_t c = 0; c < C; c++) {
            dwte.add(static_cast<size_t>(tokens[n]) * C + c, dout[n * C + c]);
            dwpe.add(n % T * C + c, dout[n * C + c]);
        }
    }
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
        const std::vector<int> tokens = random_tokens(s, 1);
        const auto wte = random_values<T>(static_cast<size_t>(s.V) * C, 2),
                   wpe = random_values<T>(max_T * C, 3);
        const auto tokens_ = upload(tokens);
        const auto wte_ = upload<T>(wte), wpe_ = upload<T>(wpe);
        auto out = poisoned<T>(tokens.size() * C);
        encoder_forward<W>(out.data(), tokens_.data(), wte_.data(), wpe_.data(), s.B, s.T, s.C, nullptr);
        std::vector<float> expected;  // one addition, rounded once
        for (size_t n = 0; n < tokens.size(); n++) {
            for (size_t c = 0; c < C; c++) {
                expected.push_back(static_cast<float>(T(wte[static_cast<size_t>(tokens[n]) * C + c] +
                                                        wpe[n % static_cast<size_t>(s.T) * C + c])));
            }
        }
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
    Sum dwte_expected(dwte), dwpe_expected(dwpe);
    backward(dwte_expected, dwpe_expected, dout, tokens, static_cast<size_t>(s.T), C);
    expect_close<float>(download(dwte_), dwte_expected.value, dwte_expected.magnitude);
    expect_close<float>(download(dwpe_), dwpe_expected.value, dwpe_expected.magnitude);
}
TYPED_TEST(Encoder, BackwardMatchesDoublePrecision) {
    for (const Shape& s : shapes) {
        test_backward<TypeParam, float>(s, random_tokens(s, 1));
        test_backward<TypeParam, bfloat16>(s, random_tokens(s, 1));
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

TEST(EncoderOracle, MatchesPyTorch) {
    const SafetensorsFile dump = reference("encoder");
    const std::vector<int> tokens = dump.ints("inp");
    const size_t T = dump.at("inp").shape[1], C = dump.at("wte").shape[1];
    const auto wte = dump.floats("wte"), wpe = dump.floats("wpe"), out = dump.floats("out");
    for (size_t i = 0; i < out.size(); i++) {
        const size_t n = i / C, c = i % C;
        EXPECT_FLOAT_EQ(out[i], wte[static_cast<size_t>(tokens[n]) * C + c] + wpe[n % T * C + c]);
    }
    Sum dwte(std::vector<float>(wte.size())), dwpe(std::vector<float>(wpe.size()));
    backward(dwte, dwpe, dump.floats("dout"), tokens, T, C);
    EXPECT_LE(relative_error(dump.floats("dwte"), dwte.value), 0x1p-23);
    EXPECT_LE(relative_error(dump.floats("dwpe"), dwpe.value), 0x1p-23);
}

}  // namespace
