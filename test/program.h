// program.h: runs one of our programs in a shell, as users run them
#pragma once
#include <string>
#include <vector>

#include "temporary_folder.h"

struct ProgramResult {
    int exit_code;  // -1: ended by a signal
    std::string output;
    std::string errors;  // standard error, without lines of progress
};

// A path of this source tree, or of its build, on this machine: below $FLATGPT_ROOT if that is set (in a
// GPU bundle).
std::string relocated(const std::string& path);

// Runs `before; program arguments`, in another working directory unless `before` says otherwise.
ProgramResult run_program(const std::string& program, const std::string& arguments,
                          const std::string& before = "cd /");

// Exit code 0.
testing::AssertionResult succeeded(const ProgramResult& result);
// Exit code 2, and one line on standard error, which contains all these words.
testing::AssertionResult is_refused(const ProgramResult& result, const std::vector<std::string>& words);
// The one line of a refusal, whatever it contains.
std::string refusal_of(const ProgramResult& result);

// The number that stands between two texts of a program's output.
double number_in(const std::string& output, const std::string& before, const std::string& after);
