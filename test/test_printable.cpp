// Text on its way to a terminal: it is unchanged, except that control characters become readable; by
// itself and as a program's output. Also the errors if there is no output.
#include "program.h"
#include "system/print_line.h"
#include "system/printable.h"

TEST(Printable, LeavesTextAsItIs) {
    const std::string text = "na\u00efve \u65e5\u672c \U0001f600 ~ \u00a0\u0100";
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable(""), "");
}

TEST(Printable, WritesControlCharactersOut) {
    EXPECT_EQ(printable("a\x1b[31mb\rc\x7f"), "a\\x1b[31mb\\x0dc\\x7f");
    EXPECT_EQ(printable(std::string("\0\n", 2)), "\\x00\\x0a");
    EXPECT_EQ(printable("a\nb\tc\r", "\n\t"), "a\nb\tc\\x0d");
    // U+009B alone begins a sequence too
    EXPECT_EQ(printable("\u0080\u009b31m\u009f\u00a0"), "\\x80\\x9b31m\\x9f\u00a0");
    EXPECT_EQ(printable("a\x9b\xff"), "a\uFFFD\uFFFD");
}

// A malicious file name or token could otherwise colour the terminal, move the cursor or set the window's
// title.
TEST(Printable, AMessageOfAProgramHoldsNoControlCharacter) {
    const TemporaryFolder folder;
    folder.write("a\x1b]0;title\x07.bin", "no shard");
    for (const auto& [program, arguments] :
         {std::pair{TRAIN_PROGRAM, "--train-data"}, {TOKENIZE_PROGRAM, "--out x"}}) {
        const ProgramResult result = run_program(
            program, std::string(arguments) + " \"$(printf 'a\\033]0;title\\007.bin')\" --no-such\x1b[1m",
            "cd '" + folder.path() + "'");
        EXPECT_EQ(result.exit_code, 2);
        EXPECT_EQ(result.errors.find_first_of("\x1b\x07"), std::string::npos) << result.errors;
    }
    const ProgramResult result = run_program(
        TRAIN_PROGRAM, "--train-data \"$(printf 'a\\033]0;title\\007.bin')\"", "cd '" + folder.path() + "'");
    EXPECT_EQ(result.errors,
              "train_gpt2: a\\x1b]0;title\\x07.bin: 8 bytes are too short for a token shard, whose header "
              "alone has 1024\n");
}

TEST(PrintLine, WritesTheWholeTextAndALineFeed) {
    const TemporaryFolder folder;
    std::FILE* const file = std::fopen((folder / "lines").c_str(), "w");
    ASSERT_NE(file, nullptr);
    print_line(file, "{} of 100 %s");
    print_line(file, std::string_view("a\0b", 3));
    print_line(file, "");
    std::fclose(file);
    EXPECT_EQ(read_file(folder / "lines"), std::string("{} of 100 %s\na\0b\n\n", 18));
}

// Standard error may lead to a full disk or be closed.
TEST(PrintLine, FailsSilently) {
    std::FILE* const full = std::fopen("/dev/full", "w");
    ASSERT_NE(full, nullptr);
    std::setvbuf(full, nullptr, _IONBF, 0);
    EXPECT_NO_THROW(print_line(full, "lost"));
    EXPECT_NE(std::ferror(full), 0);
    std::fclose(full);
}
