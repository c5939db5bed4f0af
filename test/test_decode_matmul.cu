// Products of few rows: every weight type against double precision, and quantization to int8.
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

double gelu_of(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

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
                     epilogue == Epilogue::bias_gelu, nullptr);

    std::vector<double> expected(K * OC), magnitude(K * OC);
    for (size_t k = 0; k < K; k++) {
        for (size_t o = 0; o < OC; o++) {
            const double scale = int8 ? scales[o] : 1.0, plus = epilogue == Epilogue::plain ? 0.0 : bias[o];
            double sum = plus, terms = std::abs(plus);
            for (size_t c = 0; c < C; c++) {
                const double term = scale * static_cast<double>(inp[k * C + c]) * weight[o * C + c];
                sum += term, terms += std::abs(term);
            }
            expected[k * OC + o] = epilogue == Epilogue::bias_gelu ? gelu_of(sum) : sum;
            // GELU's slope is at most 1.13; in bf16 its input is rounded first.
            magnitude[k * OC + o] =
                1.2 * terms + (epilogue == Epilogue::bias_gelu && !std::is_same_v<T, float>
                                   ? 1.2 * epsilon<T> * std::abs(sum) / (8 * epsilon<float>)
                                   : 0.0);
        }
    }
    const std::vector<float> actual = download(out);
    for (size_t i = 0; i < actual.size(); i++) {
        const double bound =
            8 * epsilon<float> * magnitude[i] + 1.01 * epsilon<T> * std::abs(expected[i]) + 1e-37;
        ASSERT_LE(std::abs(static_cast<double>(actual[i]) - expected[i]), bound)
            << "element " << i << ", expected " << expected[i];
    }
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

template <class W>
class Quantize : public testing::Test {};
TYPED_TEST_SUITE(Quantize, Widths);

std::vector<int> download_bytes(const simt::DeviceBuffer<int8_t>& buffer) {
    std::vector<int8_t> raw(buffer.size());
    simt::copy_to_host(raw.data(), buffer.data(), buffer.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    return {raw.begin(), raw.end()};
}

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
        const std::vector<int> q = download_bytes(quantized);
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
    EXPECT_EQ(download_bytes(quantized), (std::vector<int>{127, 0, 2, 2, 0, -2, -2, -127}));
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
