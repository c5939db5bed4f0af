// The residual sum: exact, because one addition is rounded once.
#include "common.cuh"
#include "kernels/residual.cuh"

namespace {

template <class W>
class Residual : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Residual, Widths);

template <class W, class T>
void test_sum(size_t n, size_t offset) {
    SCOPED_TRACE(testing::Message() << "n = " << n << ", offset = " << offset);
    const auto a = random_values<T>(n + offset, 1), b = random_values<T>(n + offset, 2);
    const auto a_ = upload<T>(a), b_ = upload<T>(b);
    auto out = poisoned<T>(n + offset);
    residual_forward<W>(out.data() + offset, a_.data() + offset, b_.data() + offset, n, nullptr);
    residual_forward<W>(a_.data() + offset, a_.data() + offset, b_.data() + offset, n, nullptr);
    const auto got = download(out), in_place = download(a_);
    for (size_t i = offset; i < n + offset; i++) {
        EXPECT_EQ(got[i], static_cast<float>(T(a[i] + b[i]))) << i;
        EXPECT_EQ(in_place[i], got[i]) << i;
    }
}

TYPED_TEST(Residual, IsTheRoundedSum) {
    for (const size_t n : {1, 8, 33, 5001}) {
        for (const size_t offset : {0, 1}) {
            test_sum<TypeParam, float>(n, offset);
            test_sum<TypeParam, bfloat16>(n, offset);
        }
    }
}

}  // namespace
