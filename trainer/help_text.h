// help_text.h: what --help prints: the options in their groups, and examples, at most 100 columns wide.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

std::string help_text(const CLI::App& app);

struct Example {
    std::string what, command;
};
// Commands for the end of the help text, each with a line that says what it does.
void set_examples(CLI::App& app, const std::vector<Example>& examples);
std::vector<Example> examples_of(const CLI::App& app);

// What an option's value is called: "N", "bf16|fp32|tf32"; "" for a flag.
std::string kind_of(const CLI::Option& option);
// Its description, with its default in [brackets].
std::string description_of(const CLI::Option& option);
