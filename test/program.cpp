#include "program.h"

#include <fmt/format.h>
#include <regex.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

std::string relocated(const std::string& path) {
    const char* const root = std::getenv("FLATGPT_ROOT");
    return root != nullptr && path.starts_with(PROJECT_ROOT "/")
               ? root + path.substr(sizeof(PROJECT_ROOT) - 1)
               : path;
}

// A program that takes long reports its progress on standard error (system/status_line.h,
// trainer/data/progress_notes.h): "evaluate_gpt2: HellaSwag: 8 of 9 batches, 0s left", "tokenize: 12
// documents read", "tokenize: data: looking at file 1 of 2". Whether it does depends on how fast the machine
// is at the moment, so tests do not see these lines.
static std::string without_progress(const std::string& text) {
    // POSIX's expressions: g++ 12 warns of std::regex where AddressSanitizer is on.
    static const regex_t progress = [] {
        regex_t compiled;
        const char* const line =
            "^[a-z0-9_]+: (.*: )?([0-9]+ of [0-9]+ .+, [0-9a-z]+ left|"
            "[0-9]+ (thousand tokens|documents read|MB of text)|"
            "(looking at file|reading text) [0-9]+ of [0-9]+|[0-9]+ of [0-9]+ MiB; .+)$";
        EXPECT_EQ(regcomp(&compiled, line, REG_EXTENDED | REG_NOSUB), 0);
        return compiled;
    }();
    std::string rest;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const bool is_whole = !lines.eof();
        if (is_whole && regexec(&progress, line.c_str(), 0, nullptr, 0) == 0) continue;
        rest += line;
        if (is_whole) rest += '\n';
    }
    return rest;
}

ProgramResult run_program(const std::string& program, const std::string& arguments,
                          const std::string& before) {
    const TemporaryFolder folder;
    const std::string command = fmt::format("{}; exec '{}' {} >'{}' 2>'{}'", before, program, arguments,
                                            folder / "out", folder / "err");
    const int status = std::system(command.c_str());
    // The shell makes the file just before the program starts.
    EXPECT_TRUE(std::filesystem::exists(folder / "out"))
        << "the shell did not come to the program: " << command;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out"),
            without_progress(read_file(folder / "err"))};
}

testing::AssertionResult succeeded(const ProgramResult& result) {
    return testing::AssertionResult(result.exit_code == 0)
           << "exit code " << result.exit_code << "; " << result.errors;
}

testing::AssertionResult is_refused(const ProgramResult& result, const std::vector<std::string>& words) {
    const std::string& line = result.errors;
    if (result.exit_code != 2 || std::count(line.begin(), line.end(), '\n') != 1)
        return testing::AssertionFailure()
               << "exit code " << result.exit_code << ": " << result.output << line;
    for (const std::string& said : words) {
        if (testing::AssertionResult found = says(line, said); !found) return found;
    }
    return testing::AssertionSuccess() << line;
}

std::string refusal_of(const ProgramResult& result) {
    EXPECT_TRUE(is_refused(result, {}));
    return result.errors;
}

double number_in(const std::string& output, const std::string& before, const std::string& after) {
    const size_t begin = output.find(before) + before.size();
    size_t used = 0;
    const double value = says(output, before) ? std::stod(output.substr(begin), &used) : 0;
    EXPECT_TRUE(used > 0 && output.substr(begin + used).starts_with(after)) << output;
    return value;
}
