// print_line.h: prints a line for the user on standard output or error.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

// Unlike fmt::print it fails silently when the terminal is gone or (in a program that ignores SIGPIPE, as
// training does) the reader has exited: no message is worth losing a run.
inline void print_line(std::FILE* file, std::string_view text) {
    // One write for the whole line, since several processes may share a terminal.
    const std::string line = std::string(text) + '\n';
    std::fwrite(line.data(), 1, line.size(), file);
}
