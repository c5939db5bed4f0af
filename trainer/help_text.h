// help_text.h: what --help prints: the options in their groups, at most 110 columns wide.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

std::string help_text(const CLI::App& app);
