// packed_product.h: the promise that an element's bits depend on the length of its sum alone, and products of
// pairs of bf16, which Gemm takes on few processors. test_gemm compares the others with double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/gemm/packed_product.h"

namespace {

constexpr size_t M = 600, N = 560, first = 275, rows = 41, columns = 50;

struct Line {
    alignas(64) char bytes[64];
};
std::vector<Line> scratch() {
    return std::vector<Line>((packed_product_scratch_bytes() + sizeof(Line) - 1) / sizeof(Line));
}
template <class T>
std::vector<T> normal_values(size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<T> values(count);
    for (T& value : values) value = T(normal(random));
    return values;
}
// Both kinds of product have the same arguments.
struct Plain {
    using Element = float;
    static void multiply(auto... arguments) { packed_product<float, float>(arguments...); }
};
struct Pairs {
    using Element = bfloat16;
    static void multiply(auto... arguments) { packed_pairs_product<float>(arguments...); }
};

template <class Kind>
struct Matrices {
    using T = typename Kind::Element;
    size_t K;
    bool turn_a, turn_b;
    std::vector<T> a = normal_values<T>(M * K, 1), b = normal_values<T>(K * N, 2);
    std::vector<float> add = normal_values<float>(M * N, 3);

    // The product's rows and columns from `at` on.
    std::vector<float> product(size_t at, size_t m, size_t n,
                               const GeneralProduct<float>& general = {}) const {
        std::vector<Line> space = scratch();
        std::vector<float> c(m * n);
        const Operand<T> op_a{a.data(), turn_a ? M : K, turn_a}, op_b{b.data(), turn_b ? K : N, turn_b};
        Kind::multiply(c.data(), Operand<T>{op_a.at(at, 0), op_a.stride, turn_a},
                       Operand<T>{op_b.at(0, at), op_b.stride, turn_b}, static_cast<const T*>(nullptr), m, n,
                       K, static_cast<void*>(space.data()), general);
        return c;
    }
};

std::vector<float> part_of(const std::vector<float>& whole) {
    std::vector<float> part;
    for (size_t row = first; row < first + rows; row++)
        part.insert(part.end(), &whole[row * N + first], &whole[row * N + first + columns]);
    return part;
}

template <class Kind>
struct PackedProduct : testing::Test {};
using Kinds = testing::Types<Plain, Pairs>;
TYPED_TEST_SUITE(PackedProduct, Kinds);

TYPED_TEST(PackedProduct, AnElementHasTheSameBitsInALargerProductAndWithOneThread) {
    const int threads = omp_get_max_threads();
    for (const size_t length : {1, 257, 256, 530}) {
        if (simt::checked && length == 256) break;
        const size_t K = length * sizeof(float) / sizeof(typename TypeParam::Element);
        for (const bool turn_a : {false, true}) {
            for (const bool turn_b : {false, true}) {
                SCOPED_TRACE(testing::Message() << "K " << K << ", " << turn_a << turn_b);
                const Matrices<TypeParam> matrices{K, turn_a, turn_b};
                const std::vector<float> whole = matrices.product(0, M, N);
                EXPECT_EQ(matrices.product(first, rows, columns), part_of(whole));
                const std::vector<float> add = part_of(matrices.add);
                const GeneralProduct<float> of_all{2.0315f, -4.775f, matrices.add.data()},
                    of_part{2.0315f, -4.775f, add.data()};
                const std::vector<float> sum = matrices.product(0, M, N, of_all);
                EXPECT_EQ(matrices.product(first, rows, columns, of_part), part_of(sum));
                omp_set_num_threads(1);
                EXPECT_EQ(matrices.product(0, M, N), whole);
                EXPECT_EQ(matrices.product(0, M, N, of_all), sum);
                omp_set_num_threads(threads);
            }
        }
    }
}

// Tiles and ranges of K that are not whole, and matrices B and C that are large enough to be prefetched.
TEST(PackedPairsProduct, MatchesDoublePrecision) {
    struct Shape {
        size_t M, N, K, batch;
    };
    for (const Shape& s : {Shape{1, 1, 2, 1},
                           {7, 47, 34, 3},
                           {9, 50, 512, 1},
                           {41, 97, 1030, 2},
                           {520, 530, 6, 1},
                           {9, 530, 1030, 1}}) {
        const std::vector<bfloat16> a = normal_values<bfloat16>(s.batch * s.M * s.K, 4),
                                    b = normal_values<bfloat16>(s.batch * s.K * s.N, 5),
                                    bias = normal_values<bfloat16>(s.N, 6);
        const std::vector<float> add = normal_values<float>(s.batch * s.M * s.N, 7);
        std::vector<Line> space = scratch();
        for (int forms = 0; forms < 8; forms++) {
            const bool turn_a = forms & 1, turn_b = forms & 2, adds = forms & 4;
            SCOPED_TRACE(testing::Message() << s.M << " x " << s.N << " x " << s.K << ", form " << forms);
            const Operand<bfloat16> op_a{a.data(), turn_a ? s.M : s.K, turn_a},
                op_b{b.data(), turn_b ? s.K : s.N, turn_b};
            GeneralProduct<float> general{.batch = s.batch};
            if (adds) general.alpha = 0.5f, general.beta = 3, general.add = add.data();
            std::vector<float> c(s.batch * s.M * s.N, std::nanf(""));
            packed_pairs_product(c.data(), op_a, op_b, bias.data(), s.M, s.N, s.K, space.data(), general);
            for (size_t i = 0; i < c.size(); i++) {
                const size_t matrix = i / (s.M * s.N), row = i / s.N % s.M, column = i % s.N;
                double sum = 0, magnitude = 0;
                for (size_t k = 0; k < s.K; k++) {
                    const double product = double(float(*op_a.of_batch(matrix, s.M * s.K).at(row, k))) *
                                           double(float(*op_b.of_batch(matrix, s.K * s.N).at(k, column)));
                    sum += product, magnitude += std::abs(product);
                }
                sum = adds ? 0.5 * sum + 3.0 * double(add[i]) : sum + double(float(bias[column]));
                // K roundings of a sum in fp32
                EXPECT_NEAR(c[i], sum, (magnitude + std::abs(sum)) * double(s.K) * 0x1p-24) << i;
            }
        }
    }
}

}  // namespace
