// command_line.h: what the programs' command lines share: CLI11's options with choices and ranges of our own, errors in one line.
//   Not for .cu files, since nvcc need not read CLI11: a program with kernels parses in a .cpp of its own and includes run_main.h.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "attention.h"
#include "dtype.h"
#include "error.h"
#include "run_main.h"

inline const std::map<std::string, AttentionBackend> attentions = {{"auto", AttentionBackend::automatic},
                                                                   {"cudnn", AttentionBackend::cudnn},
                                                                   {"onednn", AttentionBackend::onednn},
                                                                   {"kernel", AttentionBackend::kernel}};

// Of an argument that open_model opens.
inline constexpr char model_path_help[] = "a checkpoint, a run's folder (its newest checkpoint), any Hugging Face GPT-2 folder, or llm.c's .bin";

// Adds --version. False: --help or --version was printed and there is nothing to run. UsageError in one line for a command line that app refuses,
// and for an empty value (usually of "$UNSET") of any option but may_be_empty.
bool parse(CLI::App& app, int argc, const char* const* argv, const std::set<std::string>& may_be_empty = {});

// "40G", "512M", "1.5G" or bytes, powers of 1024; option is named in the UsageError for anything else.
size_t parse_bytes(const std::string& option, const std::string& text);

// Numbers from low to high. Unlike CLI::Range it refuses a NaN.
CLI::Validator between(double low, double high);

template <class Value>
std::string name_of(const std::map<std::string, Value>& names, Value value) {
    for (const auto& [name, v] : names) {
        if (v == value) return name;
    }
    throw Error("an option has a value without a name");
}

// An option whose values are the keys of a map, which must outlive app: shown by --help as TEXT:{a|b|c}, and refused when unknown.
template <class Value>
CLI::Option* add_choice(CLI::App& app, const std::string& names, Value& target, const std::map<std::string, Value>& values, const std::string& help) {
    std::string choices;
    for (const auto& [name, value] : values) choices += (choices.empty() ? "" : "|") + name;
    const auto set = [&target, &values, names, choices](const std::string& text) {
        const auto found = values.find(text);
        if (found == values.end()) throw CLI::ValidationError(names, fmt::format("'{}'; expected {}", text, choices));
        target = found->second;
    };
    return app.add_option_function<std::string>(names, set, help)->type_name(choices)->default_str(name_of(values, target));
}
