// manual.h: what is made of a program's options for the shell. make install keeps both.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

// For man: the text of man1/PROGRAM.1.
std::string man_page(const CLI::App& app, const std::string& program);
// For bash: completes options, their choices and the names of files.
std::string bash_completion(const CLI::App& app, const std::string& program);
