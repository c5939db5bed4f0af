// The dtypes that a machine supports.
#include <gtest/gtest.h>

#include "system/error.h"
#include "trainer/engine/dtype.h"

namespace {

// The warning for a machine, or "".
std::string refusal(DType dtype, int compute_capability) {
    try {
        check_dtype(dtype, {.name = "Tesla T4", .compute_capability = compute_capability});
    } catch (const UsageError& error) { return error.what(); }
    return "";
}

TEST(DType, BeforeAmpereAGpuComputesInFp32Only) {
    for (const int before : {70, 75}) {
        EXPECT_EQ(refusal(DType::fp32, before), "");
        EXPECT_NE(refusal(DType::tf32, before), "");
    }
    EXPECT_EQ(refusal(DType::bf16, 75),
              "--dtype bf16 needs a GPU of compute capability 8.0 or newer, and Tesla T4 has 7.5; expected "
              "--dtype fp32");
}

TEST(DType, FromAmpereOnAndOnCpusEveryTypeIsThere) {
    for (const int capability : {0, 80, 86, 90, 100, 120}) {
        for (const DType dtype : {DType::fp32, DType::tf32, DType::bf16})
            EXPECT_EQ(refusal(dtype, capability), "") << capability;
    }
}

}  // namespace
