// attention_onednn.h: how it divides heads among OpenMP's threads. test_attention compares its results with
// double precision.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention/attention_onednn.h"
#include "kernels/simt/device.h"

namespace {

constexpr AttentionShape shape{.B = 1, .T = 9, .NH = 6, .HS = 8, .NKV = 3};
constexpr size_t row = shape.NH * shape.HS, packed_row = (shape.NH + 2 * shape.NKV) * shape.HS;

std::vector<float> random_values(size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

// out, lse and dqkv, one after the other: NaN where nothing was computed.
std::vector<float> computed() {
    const std::vector<float> qkv = random_values(shape.T * packed_row, 1),
                             dout = random_values(shape.T * row, 2);
    std::vector<float> out(dout.size(), NAN), lse(shape.NH * shape.T, NAN), dqkv(qkv.size(), NAN);
    OneDnnAttention attention;
    const simt::DeviceBuffer<char> workspace(attention.workspace_bytes<float>(shape));
    attention.forward(out.data(), lse.data(), qkv.data(), shape, workspace.data());
    attention.backward(dqkv.data(), dout.data(), qkv.data(), out.data(), lse.data(), shape, workspace.data());
    out.insert(out.end(), lse.begin(), lse.end());
    out.insert(out.end(), dqkv.begin(), dqkv.end());
    return out;
}

// A nested region has one thread here, though omp_get_max_threads() is 3. OMP_THREAD_LIMIT and OMP_DYNAMIC
// make teams smaller, too.
TEST(OneDnnAttention, ComputesEveryHeadIfATeamIsSmallerThanWasAskedFor) {
    const int threads = omp_get_max_threads(), levels = omp_get_max_active_levels();
    omp_set_num_threads(3);
    omp_set_max_active_levels(1);
    const std::vector<float> expected = computed();
    std::vector<float> found;
    int asked_for = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
    {
        asked_for = omp_get_max_threads();
        found = computed();
    }
    omp_set_num_threads(threads);
    omp_set_max_active_levels(levels);
    EXPECT_EQ(asked_for, 3);
    for (const float value : expected) ASSERT_FALSE(std::isnan(value));
    EXPECT_EQ(found, expected);
}

}  // namespace
