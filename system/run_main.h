// run_main.h: a program's main: exceptions become one line on standard error and an exit code. And its
// result, which must not get lost.
#pragma once
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "system/error.h"
#include "system/print_line.h"
#include "system/printable.h"

// Writes to standard output at once. Error, which calls the text `what`, if that fails: nobody would miss it
// on a full disk.
inline void write_output(std::string_view text, const std::string& what) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0 ||
        std::ferror(stdout) != 0)
        throw Error(what + " cannot be written to standard output");
}

// Says what was wrong after the program's name. Returns main's exit code: Error's own, 1 for any other
// exception.
inline int report(const std::string& program, const std::exception& error) {
    std::fflush(stdout);
    print_line(stderr, fmt::format("{}: {}", program, printable(error.what())));
    const Error* const own = dynamic_cast<const Error*>(&error);
    return own ? own->exit_code : 1;
}

// A file that may not grow is a failed write, which says so, instead of the program's end.
inline void ignore_limits_of_files() { std::signal(SIGXFSZ, SIG_IGN); }

// Runs body; an exception is reported.
template <class Body>
int run_main(const std::string& program, const Body& body) {
    ignore_limits_of_files();
    try {
        body();
        return 0;
    } catch (const std::exception& error) { return report(program, error); }
}
