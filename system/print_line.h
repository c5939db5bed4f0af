// print_line.h: a line for a person, on standard output or error.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

// Unlike fmt::print it fails silently, when the terminal is gone or (in a program that ignores SIGPIPE, as
// training does) nobody reads any more: no message is worth a run.
inline void print_line(std::FILE* file, std::string_view text) {
    const std::string line = std::string(text) + '\n';  // at once: several processes may share a terminal
    std::fwrite(line.data(), 1, line.size(), file);
}
