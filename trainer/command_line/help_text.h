// help_text.h: texts that are made from a program's options: --help, the man page, shell completion.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

struct Example {
    std::string what, command;
};
// Sets the commands at the end of the help text, each with a line that says what it does.
void set_examples(CLI::App& app, const std::vector<Example>& examples);

// Options in their groups, and examples, at most 100 columns wide.
std::string help_text(const CLI::App& app);
// The text of man1/PROGRAM.1, for make install.
std::string man_page(const CLI::App& app, const std::string& program);
// A bash script that completes options, their choices and file names, for make install.
std::string bash_completion(const CLI::App& app, const std::string& program);
