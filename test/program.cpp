#include "program.h"

#include <fmt/format.h>
#include <sys/wait.h>

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
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out"),
            read_file(folder / "err")};
}
