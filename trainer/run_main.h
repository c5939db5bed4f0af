// run_main.h: a program's main: exceptions become one line on standard error and an exit code.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string>

#include "error.h"
#include "printable.h"

// Runs body; an exception is reported after the program's name. Returns main's exit code: Error's own, 1 for any other exception.
template <class Body>
int run_main(const std::string& program, const Body& body) {
    const auto report = [&](const std::exception& error) {
        std::fflush(stdout);
        fmt::print(stderr, "{}: {}\n", program, printable(error.what()));
    };
    try {
        body();
        return 0;
    } catch (const Error& error) {
        report(error);
        return error.exit_code;
    } catch (const std::exception& error) {
        report(error);
        return 1;
    }
}
