// Fresh tensors: normal numbers that depend on (seed, purpose, index) alone, constants, conversions.

#include "common.cuh"
#include "kernels/random.cuh"

namespace {

template <class W>
class Random : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Random, Widths);

template <class W>
std::vector<float> normals(size_t n, uint64_t seed, uint32_t purpose, float mean = 0.0f, float std = 1.0f) {
    auto out = poisoned<float>(n);
    normal_init<W>(out.data(), n, mean, std, seed, purpose, nullptr);
    return download(out);
}

// Box and Muller's formula in double precision on the bits of Philox.
double exact_normal(uint64_t i, uint64_t seed, uint32_t purpose) {
    const uint64_t counter = i / 4;
    const Philox4 bits =
        philox4x32_10({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), purpose, 0}},
                      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const size_t pair = i % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((bits.x[pair] + 0.5) / 0x1p32)),
                 angle = 2 * M_PI * (bits.x[pair + 1] >> 8) / 0x1p24;
    return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TYPED_TEST(Random, NormalsAreBoxMullerOnPhilox) {
    const auto values = normals<TypeParam>(10001, 0x123456789abcdef0, 5);
    for (size_t i = 0; i < values.size(); i++)
        ASSERT_NEAR(values[i], exact_normal(i, 0x123456789abcdef0, 5), 5e-6) << i;
}

TYPED_TEST(Random, NormalsDependOnSeedPurposeAndIndexAlone) {
    const auto values = normals<TypeParam>(5000, 1, 2);
    EXPECT_EQ(normals<simt::GpuWidth<32>>(5000, 1, 2), values) << "another width";
    const auto fewer = normals<TypeParam>(1001, 1, 2);
    EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), values.begin())) << "another length";
    for (const auto& others :
         {normals<TypeParam>(5000, 2, 2), normals<TypeParam>(5000, uint64_t{1} << 32 | 1, 2),
          normals<TypeParam>(5000, 1, 3)}) {
        size_t equal = 0;
        for (size_t i = 0; i < values.size(); i++) equal += values[i] == others[i];
        EXPECT_LE(equal, 1u);
    }
}

TYPED_TEST(Random, NormalsHaveTheirMoments) {
    const size_t n = 1 << 17;
    const auto values = normals<TypeParam>(n, 3, 1, 0.5f, 2.0f);
    double sum = 0, squares = 0, fourth = 0, neighbours = 0;
    for (size_t i = 0; i < n; i++) {
        const double z = (values[i] - 0.5) / 2;
        sum += z, squares += z * z, fourth += z * z * z * z;
        if (i > 0) neighbours += z * (values[i - 1] - 0.5) / 2;
    }
    const double N = static_cast<double>(n), sigma = 1 / std::sqrt(N);  // five standard deviations each
    EXPECT_NEAR(sum / N, 0, 5 * sigma);
    EXPECT_NEAR(squares / N, 1, 5 * std::sqrt(2.0) * sigma);
    EXPECT_NEAR(fourth / N, 3, 5 * std::sqrt(96.0) * sigma);
    EXPECT_NEAR(neighbours / N, 0, 5 * sigma);
}

TYPED_TEST(Random, FillAndConvertWriteEveryElement) {
    for (const size_t n : {1, 8, 1003}) {
        auto filled = poisoned<bfloat16>(n), converted = poisoned<bfloat16>(n + 1);
        fill<TypeParam>(filled.data(), 1.5f, n, nullptr);
        EXPECT_EQ(download(filled), std::vector<float>(n, 1.5f));
        const auto values = random_values<float>(n, 1);
        const auto values_ = upload<float>(values);
        convert<TypeParam>(converted.data() + 1, values_.data(), n, nullptr);
        const auto got = download(converted);
        EXPECT_TRUE(std::isnan(got[0]));
        for (size_t i = 0; i < n; i++) EXPECT_EQ(got[i + 1], static_cast<float>(bfloat16(values[i]))) << i;
        auto back = poisoned<float>(n);
        convert<TypeParam>(back.data(), filled.data(), n, nullptr);
        EXPECT_EQ(download(back), std::vector<float>(n, 1.5f));
    }
}

}  // namespace
