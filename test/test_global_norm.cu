// The squared norm of the gradients against double precision; it is never finite if a gradient is not.
#include <limits>

#include "common.cuh"
#include "kernels/global_norm.cuh"

namespace {

template <class W>
class GlobalNorm : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 512>;
TYPED_TEST_SUITE(GlobalNorm, Widths);

template <class W>
float norm_squared(const std::vector<float>& grads) {
    const auto grads_ = upload<float>(grads);
    auto out = poisoned<float>(1), scratch = poisoned<float>(global_norm_scratch(grads.size()));
    global_norm_squared<W>(out.data(), scratch.data(), grads_.data(), grads.size(), nullptr);
    return download(out)[0];
}

// A piece, its neighbours, and several pieces with an odd remainder.
const std::vector<size_t> sizes = {1, 5, 64, 32767, 32768, 32769, 200003};

TYPED_TEST(GlobalNorm, MatchesDoublePrecision) {
    for (const size_t n : sizes) {
        const auto grads = random_values<float>(n, 1, 1e-3f);
        double expected = 0;
        for (const double g : grads) expected += g * g;
        EXPECT_LE(relative_error(std::vector{norm_squared<TypeParam>(grads)}, std::vector{expected}), 1e-6)
            << n;
    }
}

TYPED_TEST(GlobalNorm, OneBadGradientMakesItNotFinite) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
        for (const size_t at : {size_t{0}, size_t{32767}, size_t{40000}, size_t{65538}}) {
            std::vector<float> grads(65539, 1e-3f);
            grads[at] = bad;
            EXPECT_FALSE(std::isfinite(norm_squared<TypeParam>(grads))) << bad << " at " << at;
        }
    }
}

}  // namespace
