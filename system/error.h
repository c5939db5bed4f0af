// error.h: the exceptions of this project.
//   Each message is one line that names the offending value, the expected one and, if it helps, what to
//   do. main() prints it after the program's name and exits with exit_code.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>

// The run failed: exit code 1.
class Error : public std::runtime_error {
public:
    explicit Error(const std::string& message, int exit_code = 1)
        : std::runtime_error(message), exit_code(exit_code) {}
    int exit_code;
};

// Bad usage or bad input, found before any work was done: exit code 2.
class UsageError : public Error {
public:
    explicit UsageError(const std::string& message) : Error(message, 2) {}
};

// CHECK(N > 0, "layernorm: N = {} must be positive", N);
#define CHECK(condition, ...) \
    do { \
        if (!(condition)) throw UsageError(fmt::format(__VA_ARGS__)); \
    } while (0)
