// near_names.h: which option is meant by a name that none has: a slip of the fingers, the beginning of a
// name, or what nanoGPT, llm.c and transformers call the same.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

// "; did you mean --steps?", with up to three options; "" if none comes near. word: with dashes or without,
// and so are the names then.
std::string did_you_mean(const CLI::App& app, const std::string& word);
