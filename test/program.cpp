#include "program.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

std::string relocated(const std::string& path) {
    const char* const root = std::getenv("FLATGPT_ROOT");
    return root != nullptr && path.starts_with(PROJECT_ROOT "/")
               ? root + path.substr(sizeof(PROJECT_ROOT) - 1)
               : path;
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
            read_file(folder / "err")};
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
