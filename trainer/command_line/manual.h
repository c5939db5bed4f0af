// manual.h: man page and shell completion of a program, made from its options for make install.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

// The text of man1/PROGRAM.1.
std::string man_page(const CLI::App& app, const std::string& program);
// A bash script that completes options, their choices and file names.
std::string bash_completion(const CLI::App& app, const std::string& program);
