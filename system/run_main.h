// run_main.h: main() of a program: exceptions become one line on standard error and an exit code. Also
// its output, which must not be lost unnoticed.
#pragma once
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "system/error.h"
#include "system/print_line.h"
#include "system/printable.h"

// Writes to standard output at once. Error, which calls the text `what`, if that fails: on a full disk
// the loss would otherwise go unnoticed.
inline void write_output(std::string_view text, const std::string& what) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0 ||
        std::ferror(stdout) != 0)
        throw Error(what + " cannot be written to standard output");
}

// Prints the error after the program's name. Returns main's exit code: Error's own, or 1 for any other
// exception.
inline int report(const std::string& program, const std::exception& error) {
    std::fflush(stdout);
    print_line(stderr, fmt::format("{}: {}", program, printable(error.what())));
    const Error* const own = dynamic_cast<const Error*>(&error);
    return own ? own->exit_code : 1;
}

// At the limit of file sizes, makes a write fail, which is reported, instead of killing the program. Raises
// the limit of open files, often 1,024, as far as it may be: a data set can have more shards.
inline void set_limits_of_files() {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit files = {};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

// A file that the program opens must not get the number of a closed standard stream: what is printed would be
// written into it, and its bytes would be read as input. Reading the first of these, or writing the others,
// fails as on a closed one.
inline void occupy_standard_streams() {
    for (int number = 0; number <= STDERR_FILENO; number++)
        if (fcntl(number, F_GETFD) < 0) open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// Runs body and reports its exception, if any. Returns main's exit code.
template <class Body>
int run_main(const std::string& program, const Body& body) {
    occupy_standard_streams();
    set_limits_of_files();
    try {
        body();
        return 0;
    } catch (const std::exception& error) { return report(program, error); }
}
