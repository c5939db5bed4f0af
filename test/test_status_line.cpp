// The progress line of a program: the parts of it that fit a window. test_terminal.py tests how it is drawn.
#include <gtest/gtest.h>

#include <cmath>

#include "system/status_line.h"

namespace {

const std::vector<StatusPart> parts = {{"step 3/9"}, {"[##..]", 2}, {"loss 1.5", 1}, {"", 3}, {"fast", 3}};

TEST(StatusLine, TheLeastImportantPartsAreLeftOutFirst) {
    EXPECT_EQ(fit_parts(parts, 80), "step 3/9 | [##..] | loss 1.5 | fast");
    EXPECT_EQ(fit_parts(parts, 35), "step 3/9 | [##..] | loss 1.5 | fast");
    EXPECT_EQ(fit_parts(parts, 34), "step 3/9 | [##..] | loss 1.5");
    EXPECT_EQ(fit_parts(parts, 27), "step 3/9 | loss 1.5");
    EXPECT_EQ(fit_parts(parts, 18), "step 3/9");
    EXPECT_EQ(fit_parts(parts, 5), "step ");
    EXPECT_EQ(fit_parts(parts, 0), "");
    EXPECT_EQ(fit_parts({}, 10), "");
}

TEST(StatusLine, ACharacterOfSeveralBytesIsOneColumn) {
    EXPECT_EQ(fit_parts({{"é→x"}}, 3), "é→x");
    EXPECT_EQ(fit_parts({{"é→x"}}, 2), "é→");
    EXPECT_EQ(fit_parts({{"é→x"}}, 1), "é");
}

TEST(StatusLine, TheBarIsFilledFromTheLeft) {
    EXPECT_EQ(progress_bar(0, 4), "[....]");
    EXPECT_EQ(progress_bar(0.25, 4), "[#...]");
    EXPECT_EQ(progress_bar(0.999, 4), "[###.]");
    EXPECT_EQ(progress_bar(1, 4), "[####]");
    EXPECT_EQ(progress_bar(7, 4), "[####]");
    EXPECT_EQ(progress_bar(-1, 4), "[....]");
    EXPECT_EQ(progress_bar(NAN, 4), "[....]");
}

TEST(StatusLine, DurationsAreShort) {
    EXPECT_EQ(duration_text(0.4), "0s");
    EXPECT_EQ(duration_text(59.4), "59s");
    EXPECT_EQ(duration_text(59.6), "1m00s");
    EXPECT_EQ(duration_text(3599), "59m59s");
    EXPECT_EQ(duration_text(7500), "2h05m");
}

}  // namespace
