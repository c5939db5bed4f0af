#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "trainer/run/schedule.h"

namespace {

TEST(Schedule, WarmupRisesLinearlyToThePeak) {
    const Schedule s{"cosine", 1000, 10, 6e-4, 0.1};
    EXPECT_DOUBLE_EQ(s.at(1), 6e-5);
    EXPECT_DOUBLE_EQ(s.at(5), 3e-4);
    EXPECT_DOUBLE_EQ(s.at(10), 6e-4);
    EXPECT_DOUBLE_EQ(s.at(11), 6e-4);
}

TEST(Schedule, CosineFallsToItsFloor) {
    const Schedule s{"cosine", 1010, 10, 6e-4, 0.1};
    EXPECT_NEAR(s.at(11 + 500), 6e-4 * (0.1 + 0.9 * 0.5), 1e-9);
    EXPECT_NEAR(s.at(11 + 250), 6e-4 * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi / 4))), 1e-9);
    // Step S is t = S-1: one step above the floor.
    EXPECT_GT(s.at(1010), 6e-5);
    EXPECT_NEAR(s.at(1010), 6e-5, 1e-8);
}

TEST(Schedule, LinearAndConstant) {
    EXPECT_NEAR((Schedule{"linear", 110, 10, 1.0, 0.2}.at(61)), 0.6, 1e-6);
    EXPECT_DOUBLE_EQ((Schedule{"constant", 110, 10, 0.5, 0.0}.at(110)), 0.5);
}

TEST(Schedule, WsdDecaysInTheLastFifthOnly) {
    const Schedule s{"wsd", 1000, 0, 1.0, 0.0};
    EXPECT_DOUBLE_EQ(s.at(800), 1.0);
    EXPECT_DOUBLE_EQ(s.at(801), 1.0);
    EXPECT_DOUBLE_EQ(s.at(851), 0.5);  // 1 - sqrt(1/4)
    EXPECT_NEAR(s.at(901), 1 - std::sqrt(0.5), 1e-12);
    EXPECT_NEAR(s.at(1000), 1 - std::sqrt(199.0 / 200), 1e-12);
    const Schedule with_floor{"wsd", 7, 2, 6e-4, 0.1};
    EXPECT_DOUBLE_EQ(with_floor.at(2), 6e-4);
    // t = 5 = floor(0.8 * 7): the decay begins with r = 0
    EXPECT_DOUBLE_EQ(with_floor.at(6), 6e-4);
    EXPECT_DOUBLE_EQ(with_floor.at(7), 6e-5 + (1 - std::sqrt(0.5)) * (6e-4 - 6e-5));  // r = 1/2
}

TEST(Schedule, WsdFallsOverTheCooldownInItsShape) {
    const Schedule s{"wsd", 1000, 0, 1.0, 0.1, 0.7, "linear"};
    EXPECT_DOUBLE_EQ(s.at(301), 1.0);
    EXPECT_DOUBLE_EQ(s.at(651), 0.55);
    EXPECT_NEAR(s.at(1000), 0.1 + 0.9 / 700, 1e-12);
    EXPECT_DOUBLE_EQ((Schedule{"wsd", 1000, 0, 1.0, 0.0, 0.4}.at(701)), 0.5);  // 1 - sqrt(1/4)
    EXPECT_DOUBLE_EQ((Schedule{"wsd", 10, 0, 1.0, 0.0, 1, "linear"}.at(2)), 0.9);
}

// The fall of a run of five steps was its last step alone, where r = 0.
TEST(Schedule, AShortRunWithWsdNeverFell) {
    for (const int steps : {2, 3, 4, 5, 6}) {
        const Schedule s{"wsd", steps, 0, 1.0, 0.0};
        for (int step = 1; step < steps; step++) EXPECT_DOUBLE_EQ(s.at(step), 1.0) << steps;
        EXPECT_DOUBLE_EQ(s.at(steps), 1 - std::sqrt(0.5)) << steps;
    }
    EXPECT_DOUBLE_EQ((Schedule{"wsd", 1, 0, 1.0, 0.0}.at(1)), 1.0);
}

TEST(Schedule, NoWarmupAndWarmupForTheWholeRun) {
    EXPECT_DOUBLE_EQ((Schedule{"cosine", 5, 0, 1.0, 0.0}.at(1)), 1.0);
    const Schedule only_warmup{"cosine", 5, 5, 1.0, 0.0};
    for (int step = 1; step <= 5; step++) EXPECT_DOUBLE_EQ(only_warmup.at(step), step / 5.0);
}

}  // namespace
