// program.h: runs one of our programs in a shell, as people run them.
#pragma once
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "temporary_folder.h"

struct ProgramResult {
    int exit_code;  // -1: ended by a signal
    std::string output, errors;
};

// Runs `before; program arguments`, in another working directory unless `before` says otherwise.
inline ProgramResult run_program(const std::string& program, const std::string& arguments, const std::string& before = "cd /") {
    const TemporaryFolder folder;
    const std::string command = fmt::format("{}; exec '{}' {} >'{}' 2>'{}'", before, program, arguments, folder / "out", folder / "err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out"), read_file(folder / "err")};
}
