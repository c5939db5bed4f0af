// int8_product.h: its sums are exact where nothing is rounded, a row's bits are its own, and values that are
// not finite stay in their rows. test_gemm compares its results with double precision.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/gemm/int8_product.h"

namespace {

struct Int8Matrices {
    size_t N, C, OC;
    std::vector<bfloat16> inp;
    std::vector<int8_t> weights;
    std::vector<float> scales;

    // Whole numbers up to 127, of which each group has one: a scale of 1.
    Int8Matrices(size_t N, size_t C, size_t OC) : N(N), C(C), OC(OC), scales(OC, 1.0f) {
        std::mt19937 random(static_cast<unsigned>(C));
        const auto number = [&] { return static_cast<int>(random() % 255) - 127; };
        for (size_t i = 0; i < N * C; i++)
            inp.push_back(bfloat16(static_cast<float>(i % C % 64 == 0 ? -127 : number())));
        for (size_t i = 0; i < OC * C; i++) weights.push_back(static_cast<int8_t>(number()));
    }
    // The bits of the product's rows from `first` on, widened to fp32. T: the type of inp and of the product.
    template <class T = bfloat16>
    std::vector<uint32_t> product(size_t first, size_t rows, size_t columns = 0) const {
        if (columns == 0) columns = OC;
        struct Line {
            alignas(64) char bytes[64];
        };
        std::vector<Line> scratch(simt::ceil_div(int8_product_scratch_bytes(rows, C), sizeof(Line)));
        std::vector<T> x, out(rows * columns);
        for (size_t i = 0; i < rows * C; i++) x.push_back(T(static_cast<float>(inp[first * C + i])));
        int8_product(out.data(), x.data(), weights.data(), scales.data(), static_cast<const T*>(nullptr),
                     rows, C, columns, scratch.data());
        std::vector<uint32_t> bits;
        for (const T value : out) bits.push_back(std::bit_cast<uint32_t>(static_cast<float>(value)));
        return bits;
    }
};

TEST(Int8Product, WholeNumbersAreExact) {
    // C: a part of a group, of a vector, of a range; 1024 whole numbers of 127 * 127 are below 2^24
    for (const auto& [N, C, OC] : {std::array<size_t, 3>{1, 1, 1},
                                   {3, 60, 33},
                                   {9, 64, 48},
                                   {17, 577, 130},
                                   {8, 1024, 7},
                                   {300, 70, 500}}) {
        const Int8Matrices m(N, C, OC);
        const std::vector<uint32_t> bits = m.product(0, N);
        for (size_t i = 0; i < bits.size(); i++) {
            int sum = 0;
            for (size_t c = 0; c < C; c++)
                sum +=
                    static_cast<int>(static_cast<float>(m.inp[i / OC * C + c])) * m.weights[i % OC * C + c];
            ASSERT_EQ(bits[i] >> 16, bfloat16(static_cast<float>(sum)).bits)
                << "C " << C << ", element " << i;
        }
    }
}

TEST(Int8Product, AnElementsBitsDependNeitherOnOtherRowsAndColumnsNorOnThreads) {
    constexpr size_t N = 290, C = 1300, OC = 130;
    Int8Matrices m(N, C, OC);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (bfloat16& x : m.inp) x = bfloat16(normal(random));
    for (float& scale : m.scales) scale = 0.01f * normal(random);
    m.scales[3] = NAN;  // quantize.cuh: a weight of this row was not finite
    m.inp[20 * C + 70] = bfloat16(INFINITY);
    m.inp[285 * C + 1299] = bfloat16(NAN);
    const std::vector<uint32_t> whole = m.product<float>(0, N);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    EXPECT_EQ(m.product<float>(0, N), whole);
    omp_set_num_threads(threads);
    for (const size_t row : {0, 7, 20, 100, 285, 289}) {
        const std::vector<uint32_t> alone = m.product<float>(row, 1);
        ASSERT_EQ(alone, std::vector(&whole[row * OC], &whole[row * OC] + OC)) << "row " << row;
    }
    for (const size_t columns : {33, 7}) {
        const std::vector<uint32_t> narrow = m.product<float>(0, N, columns);
        for (size_t i = 0; i < narrow.size(); i++)
            ASSERT_EQ(narrow[i], whole[i / columns * OC + i % columns]) << "element " << i;
    }
    for (size_t i = 0; i < whole.size(); i++) {
        const size_t row = i / OC, column = i % OC;
        const bool finite = std::isfinite(std::bit_cast<float>(whole[i]));
        ASSERT_EQ(finite, row != 20 && row != 285 && column != 3) << "element " << i;
    }
}

TEST(Int8Product, GroupsOfZerosAndOfTheSmallestNumbersAreZero) {
    Int8Matrices m(3, 192, 5);
    for (size_t i = 0; i < m.inp.size(); i++)
        m.inp[i] = bfloat16(i % 192 < 64 ? 0.0f : i % 192 < 128 ? 1e-38f : 2.0f);
    m.inp[192] = bfloat16(-0.0f);
    const std::vector<uint32_t> bits = m.product(0, 3);
    for (size_t i = 0; i < bits.size(); i++) {
        int sum = 0;
        for (size_t c = 128; c < 192; c++) sum += 2 * m.weights[i % 5 * 192 + c];
        EXPECT_NEAR(std::bit_cast<float>(bits[i]), sum, 0.004 * std::abs(sum)) << "element " << i;
    }
}

}  // namespace
