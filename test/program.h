// program.h: runs one of our programs in a shell, as users run them
#pragma once
#include <string>

#include "temporary_folder.h"

struct ProgramResult {
    int exit_code;  // -1: ended by a signal
    std::string output, errors;
};

// A path of this source tree, or of its build, on this machine: below $FLATGPT_ROOT if that is set (in a
// GPU bundle).
std::string relocated(const std::string& path);

// Runs `before; program arguments`, in another working directory unless `before` says otherwise.
ProgramResult run_program(const std::string& program, const std::string& arguments,
                          const std::string& before = "cd /");
