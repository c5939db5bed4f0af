// Products of few rows: every weight type against plain_gpt2.h, and quantization to int8.
#include "common.cuh"
#include "kernels/decode/decode_matmul.cuh"
#include "kernels/quantize.cuh"

namespace {

// One row and one column; rows and columns that fill no vector; a whole vector of both, some more, one less;
// every number of samples summed at once.
const std::vector<DecodeMatmulShape> shapes = {{1, 1, 1},   {1, 48, 37}, {2, 33, 16}, {3, 128, 5},
                                               {4, 64, 32}, {2, 64, 31}, {5, 96, 67}, {9, 512, 18}};

template <class W>
class DecodeMatmul : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(DecodeMatmul, Widths);

std::vector<float> random_bytes(size_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(static_cast<int>(generator() % 255) - 127);
    return values;
}

enum class Epilogue { plain, bias, bias_gelu };

template <class W, class T, class Weight>
void test_product(const DecodeMatmulShape& shape, Epilogue epilogue) {
    const auto [K, C, OC] = shape;
    SCOPED_TRACE(testing::Message() << "K = " << K << ", C = " << C << ", OC = " << OC << ", epilogue "
                                    << static_cast<int>(epilogue));
    constexpr bool int8 = std::is_same_v<Weight, int8_t>;
    const auto inp = random_values<T>(K * C, 1), bias = random_values<T>(OC, 2),
               scales = random_values<float>(OC, 3, 0.002f, 0.01f);
    std::vector<float> weight;
    if constexpr (int8) weight = random_bytes(OC * C, 4);
    else weight = random_values<Weight>(OC * C, 4, 0.5f);
    const auto inp_ = upload<T>(inp), bias_ = upload<T>(bias);
    const auto scales_ = upload<float>(scales);
    const auto weight_ = upload<Weight>(weight);
    auto out = poisoned<T>(K * OC);
    decode_matmul<W>(out.data(), inp_.data(), weight_.data(), int8 ? scales_.data() : nullptr,
                     epilogue == Epilogue::plain ? nullptr : bias_.data(), shape,
                     epilogue == Epilogue::bias_gelu ? Activation::gelu : Activation::none, nullptr);

    std::vector<Bounded> dequantized = exact(weight), expected(K * OC);
    for (size_t i = 0; int8 && i < dequantized.size(); i++)
        dequantized[i] = static_cast<double>(scales[i / C]) * static_cast<double>(weight[i]);
    plain::matmul_forward(expected.data(), exact(inp).data(), dequantized.data(),
                          epilogue == Epilogue::plain ? nullptr : exact(bias).data(), K, C, OC);
    for (Bounded& e : expected) {
        e.magnitude = 1.2 * e.size();
        if (epilogue != Epilogue::bias_gelu) continue;
        // GELU's slope is at most 1.13; in bf16 its input is rounded first.
        if (!std::is_same_v<T, float>)
            e.magnitude += 1.2 * epsilon<T> * std::abs(e.value) / (8 * epsilon<float>);
        e.value = plain::gelu(e.value);
    }
    expect_within(download(out), expected, [](Bounded e) {
        return 8 * epsilon<float> * e.size() + 1.01 * epsilon<T> * std::abs(e.value);
    });
}

template <class W, class T, class Weight>
void test_products() {
    for (const DecodeMatmulShape& shape : shapes) {
        for (const Epilogue epilogue : {Epilogue::plain, Epilogue::bias, Epilogue::bias_gelu})
            test_product<W, T, Weight>(shape, epilogue);
    }
}

TYPED_TEST(DecodeMatmul, MatchesDoublePrecision) {
    test_products<TypeParam, float, float>();
    test_products<TypeParam, bfloat16, bfloat16>();
}
TYPED_TEST(DecodeMatmul, DequantizesInt8) {
    test_products<TypeParam, float, int8_t>();
    test_products<TypeParam, bfloat16, int8_t>();
}

template <class W, class T, class Weight>
void test_samples() {
    constexpr size_t K = 9, OC = 37;
    for (const size_t C : {256, 96, 48, 33}) {  // cache lines of every type, of some, of none; no vectors
        const auto inp = upload<T>(random_values<T>(K * C, 1)), bias = upload<T>(random_values<T>(OC, 2));
        const auto scales = upload<float>(random_values<float>(OC, 3));
        std::vector<float> values;
        if constexpr (std::is_same_v<Weight, int8_t>) values = random_bytes(OC * C, 4);
        else values = random_values<Weight>(OC * C, 4);
        const auto weight = upload<Weight>(values);
        const auto product = [&](size_t first, size_t samples) {
            auto out = poisoned<T>(samples * OC);
            decode_matmul<W>(out.data(), inp.data() + first * C, weight.data(), scales.data(), bias.data(),
                             {samples, C, OC}, Activation::none, nullptr);
            return download(out);
        };
        std::vector<float> alone;
        for (size_t k = 0; k < K; k++) {
            const std::vector<float> one = product(k, 1);
            alone.insert(alone.end(), one.begin(), one.end());
        }
        for (const size_t samples : {2, 3, 4, 5, 9}) {
            const std::vector<float> together = product(0, samples);
            for (size_t i = 0; i < together.size(); i++)
                ASSERT_EQ(together[i], alone[i]) << "C = " << C << ", sample " << i / OC << " of " << samples;
        }
    }
}

// Texts do not depend on how many are generated together.
TYPED_TEST(DecodeMatmul, ASampleIsTheSameAmongOthers) {
    test_samples<TypeParam, float, float>();
    test_samples<TypeParam, float, int8_t>();
    test_samples<TypeParam, bfloat16, bfloat16>();
    test_samples<TypeParam, bfloat16, int8_t>();
}

template <class W>
class Quantize : public testing::Test {};
TYPED_TEST_SUITE(Quantize, Widths);

TYPED_TEST(Quantize, RoundsToTheNearestOf255Steps) {
    for (const auto& [OC, C] : std::vector<std::pair<size_t, size_t>>{{1, 1}, {3, 64}, {37, 33}, {5, 768}}) {
        SCOPED_TRACE(testing::Message() << "OC = " << OC << ", C = " << C);
        auto weight = random_values<float>(OC * C, 1);
        for (size_t c = 0; c < C && OC > 1; c++) weight[C + c] = 0.0f;  // a row of zeros
        const auto weight_ = upload<float>(weight);
        simt::DeviceBuffer<int8_t> quantized = poisoned<int8_t>(OC * C);
        auto scales = poisoned<float>(OC), back = poisoned<float>(OC * C);
        quantize<TypeParam>(quantized.data(), scales.data(), weight_.data(), OC, static_cast<int>(C),
                            nullptr);
        dequantize<TypeParam>(back.data(), quantized.data(), scales.data(), OC, static_cast<int>(C), nullptr);
        const std::vector<int8_t> q = download_raw(quantized);
        const std::vector<float> scale = download(scales), values = download(back);
        for (size_t o = 0; o < OC; o++) {
            float largest = 0;
            for (size_t c = 0; c < C; c++) largest = std::max(largest, std::abs(weight[o * C + c]));
            ASSERT_EQ(scale[o], largest / 127.0f) << "row " << o;
            int largest_step = 0;
            for (size_t c = 0; c < C; c++) {
                const size_t i = o * C + c;
                const double steps =
                    largest > 0 ? 127.0 * static_cast<double>(weight[i]) / static_cast<double>(largest) : 0.0;
                // 1e-4: fp32 may round a half to the other side
                ASSERT_LE(std::abs(q[i] - steps), 0.5 + 1e-4) << "element " << i;
                ASSERT_EQ(values[i], static_cast<float>(q[i]) * scale[o]) << "element " << i;
                largest_step = std::max(largest_step, std::abs(q[i]));
            }
            ASSERT_EQ(largest_step, largest > 0 ? 127 : 0) << "row " << o;
        }
    }
}

TYPED_TEST(Quantize, RoundsHalvesToEven) {
    const auto weight =
        upload<float>(std::vector<float>{127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, -127.0f});
    auto quantized = poisoned<int8_t>(8);
    auto scales = poisoned<float>(1);
    quantize<TypeParam>(quantized.data(), scales.data(), weight.data(), 1, 8, nullptr);
    EXPECT_EQ(download_raw(quantized), (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, -127}));
}

// 127 / largest would be infinite, or the weights subnormal.
TYPED_TEST(Quantize, ARowBelow1em36BecomesZeros) {
    const std::vector<float> largest = {1e-40f, 1e-37f, 3e-36f};
    constexpr size_t C = 33;
    std::vector<float> weight;
    for (const float of_row : largest) {
        for (size_t c = 0; c < C; c++) weight.push_back(c % 2 == 0 ? of_row : -of_row);
    }
    const auto weight_ = upload<float>(weight);
    auto quantized = poisoned<int8_t>(weight.size());
    auto scales = poisoned<float>(largest.size());
    quantize<TypeParam>(quantized.data(), scales.data(), weight_.data(), largest.size(), C, nullptr);
    const std::vector<int8_t> q = download_raw(quantized);
    const std::vector<float> scale = download(scales);
    for (size_t i = 0; i < weight.size(); i++)
        ASSERT_EQ(q[i], i / C < 2 ? 0 : weight[i] > 0 ? 127 : -127) << "element " << i;
    for (size_t o = 0; o < largest.size(); o++) EXPECT_TRUE(std::isfinite(scale[o])) << "row " << o;
}

// A NaN was treated as 0, which hid a broken model.
TYPED_TEST(Quantize, AWeightThatIsNotFiniteMakesItsRowANaN) {
    constexpr size_t OC = 4, C = 72;
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
        for (const size_t at : {size_t{0}, size_t{37}, C - 1}) {
            SCOPED_TRACE(testing::Message() << bad << " at " << at);
            auto weight = random_values<float>(OC * C, 1);
            weight[C + at] = bad;
            weight[2 * C + at] = -1e38f;  // finite still
            const auto weight_ = upload<float>(weight);
            simt::DeviceBuffer<int8_t> quantized = poisoned<int8_t>(OC * C);
            auto scales = poisoned<float>(OC), back = poisoned<float>(OC * C);
            quantize<TypeParam>(quantized.data(), scales.data(), weight_.data(), OC, C, nullptr);
            dequantize<TypeParam>(back.data(), quantized.data(), scales.data(), OC, C, nullptr);
            const std::vector<float> scale = download(scales), values = download(back);
            for (size_t o = 0; o < OC; o++) {
                ASSERT_EQ(std::isnan(scale[o]), o == 1) << "row " << o;
                for (size_t c = 0; c < C; c++)
                    ASSERT_EQ(std::isfinite(values[o * C + c]), o != 1) << "row " << o << ", column " << c;
            }
        }
    }
}

}  // namespace
