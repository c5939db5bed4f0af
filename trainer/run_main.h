// run_main.h: a program's main: exceptions become one line on standard error and an exit code.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string>

#include "error.h"
#include "printable.h"

// Says what was wrong after the program's name. Returns main's exit code: Error's own, 1 for any other exception.
inline int report(const std::string& program, const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", program, printable(error.what()));
    const Error* const own = dynamic_cast<const Error*>(&error);
    return own ? own->exit_code : 1;
}

// Runs body; an exception is reported.
template <class Body>
int run_main(const std::string& program, const Body& body) {
    try {
        body();
        return 0;
    } catch (const std::exception& error) { return report(program, error); }
}
