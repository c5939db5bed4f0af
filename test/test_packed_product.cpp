// packed_product.h: the promise that an element's bits depend on the length of its sum alone. test_gemm
// compares its results with double precision.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/gemm/packed_product.h"

namespace {

constexpr size_t M = 600, N = 560, first = 275, rows = 41, columns = 50;

struct Matrices {
    size_t K;
    bool turn_a, turn_b;
    std::vector<float> a, b, add;

    Matrices(size_t K, bool turn_a, bool turn_b) : K(K), turn_a(turn_a), turn_b(turn_b) {
        std::mt19937 random(static_cast<unsigned>(K));
        std::normal_distribution<float> normal;
        for (auto [values, count] : {std::pair(&a, M * K), {&b, K * N}, {&add, M * N}}) {
            for (size_t i = 0; i < count; i++) values->push_back(normal(random));
        }
    }
    // The product's rows and columns from `at` on.
    std::vector<float> product(size_t at, size_t m, size_t n, const GeneralProduct<float>* general) const {
        struct Line {
            alignas(64) char bytes[64];
        };
        std::vector<Line> scratch((packed_product_scratch_bytes() + sizeof(Line) - 1) / sizeof(Line));
        std::vector<float> c(m * n);
        const Operand<float> op_a{a.data(), turn_a ? M : K, turn_a}, op_b{b.data(), turn_b ? K : N, turn_b};
        packed_product(c.data(), {op_a.at(at, 0), op_a.stride, turn_a}, {op_b.at(0, at), op_b.stride, turn_b},
                       static_cast<const float*>(nullptr), m, n, K, false, scratch.data(), general);
        return c;
    }
};

std::vector<float> part_of(const std::vector<float>& whole) {
    std::vector<float> part;
    for (size_t row = first; row < first + rows; row++)
        part.insert(part.end(), &whole[row * N + first], &whole[row * N + first + columns]);
    return part;
}

TEST(PackedProduct, AnElementHasTheSameBitsInALargerProductAndWithOneThread) {
    const int threads = omp_get_max_threads();
    for (const size_t K : {1, 257, 256, 530}) {
        if (simt::checked && K == 256) break;
        for (const bool turn_a : {false, true}) {
            for (const bool turn_b : {false, true}) {
                SCOPED_TRACE(testing::Message() << "K " << K << ", " << turn_a << turn_b);
                const Matrices matrices(K, turn_a, turn_b);
                const std::vector<float> whole = matrices.product(0, M, N, nullptr);
                EXPECT_EQ(matrices.product(first, rows, columns, nullptr), part_of(whole));
                const std::vector<float> add = part_of(matrices.add);
                const GeneralProduct<float> of_all{2.0315f, -4.775f, matrices.add.data()},
                    of_part{2.0315f, -4.775f, add.data()};
                const std::vector<float> sum = matrices.product(0, M, N, &of_all);
                EXPECT_EQ(matrices.product(first, rows, columns, &of_part), part_of(sum));
                omp_set_num_threads(1);
                EXPECT_EQ(matrices.product(0, M, N, nullptr), whole);
                EXPECT_EQ(matrices.product(0, M, N, &of_all), sum);
                omp_set_num_threads(threads);
            }
        }
    }
}

}  // namespace
