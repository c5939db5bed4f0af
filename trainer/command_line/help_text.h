// help_text.h: the text of --help: options in their groups, and examples, at most 100 columns wide.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

std::string help_text(const CLI::App& app);

struct Example {
    std::string what, command;
};
// Sets the commands at the end of the help text, each with a line that says what it does.
void set_examples(CLI::App& app, const std::vector<Example>& examples);
std::vector<Example> examples_of(const CLI::App& app);

// The options of a program or a group: the named or the positional ones. A group's inherited --help is left
// out.
std::vector<const CLI::Option*> options_in(const CLI::App& group, bool positional);
// The positional arguments in a usage line, such as " FILE... [OTHER]". shown() formats each name.
std::string usage_of_arguments(const CLI::App& app,
                               const std::function<std::string(const std::string&)>& shown);

// The placeholder of an option's value: "N", "bf16|fp32|tf32"; "" for a flag.
std::string kind_of(const CLI::Option& option);
// An option's description, with its default in [brackets].
std::string description_of(const CLI::Option& option);
