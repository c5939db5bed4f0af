// The progress line of a program: the parts of it that fit a window. test_terminal.py tests how it is drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "program.h"
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

// run_program leaves out the lines that Progress prints, and nothing else.
TEST(StatusLine, ProgressIsNotPartOfWhatTestsCompare) {
    const TemporaryFolder folder;
    const std::string path = folder / "lines";
    std::FILE* const file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr);
    {
        StatusLine line(file);
        Progress batches(line, "evaluate_gpt2: HellaSwag", "batches", 9);
        Progress documents(line, "tokenize", "documents read", 0);
        std::this_thread::sleep_for(
            std::chrono::milliseconds(2100));  // the first line is due after two seconds
        batches.at(3);
        documents.at(12);
        line.print("tokenize: 12 documents were left out");
    }
    std::fputs("no line feed", file);
    ASSERT_EQ(std::fclose(file), 0);
    const std::string all = read_file(path);
    EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 3) << all;
    EXPECT_EQ(run_program("/bin/sh", "-c 'cat \"" + path + "\" >&2'").errors,
              "tokenize: 12 documents were left out\nno line feed");
}

}  // namespace
