// A step's share of the machine's peak, which may have been measured too low
#include <gtest/gtest.h>

#include "trainer/run/mfu.h"

namespace {

TEST(Mfu, IsTheRateOfTheStepOverThePeakAndMeasuresNothingBelowIt) {
    int measured = 0;
    Mfu mfu(400e9, 2e9, [&] { return ++measured, 1e15; });
    EXPECT_DOUBLE_EQ(mfu.of(10), 0.5);  // 200 of 400 GFLOP/s
    EXPECT_DOUBLE_EQ(mfu.of(5), 1);
    EXPECT_DOUBLE_EQ(mfu.peak(), 400e9);
    EXPECT_EQ(measured, 0);
}

TEST(Mfu, APeakOfABusyMachineWasBeatenByTheStepsOfAnIdleOne) {
    int measured = 0;
    Mfu mfu(100e9, 2e9, [&] { return ++measured, 400e9; });
    EXPECT_DOUBLE_EQ(mfu.of(40), 0.5);
    EXPECT_DOUBLE_EQ(mfu.of(10), 0.5);  // 200 GFLOP/s, of 400
    EXPECT_DOUBLE_EQ(mfu.of(8), 0.625);
    EXPECT_DOUBLE_EQ(mfu.peak(), 400e9);
    EXPECT_EQ(measured, 1);
}

TEST(Mfu, AMachineThatIsStillBusyCannotMakeItMoreThanOne) {
    Mfu mfu(100e9, 2e9, [] { return 50e9; });
    EXPECT_DOUBLE_EQ(mfu.of(10), 1);
    EXPECT_DOUBLE_EQ(mfu.peak(), 200e9);
    EXPECT_DOUBLE_EQ(mfu.of(20), 0.5);
    EXPECT_DOUBLE_EQ(mfu.of(8), 1);
    EXPECT_DOUBLE_EQ(mfu.peak(), 250e9);
}

}  // namespace
