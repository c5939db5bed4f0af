// near_names.h: finds the option that an unknown name probably means: a typing error, the beginning of a
// name, or the name of the same option in nanoGPT, llm.c or transformers.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

// "; did you mean --steps?" with up to three options; "" if none is near. The suggested names have dashes
// if word has.
std::string did_you_mean(const CLI::App& app, const std::string& word);
