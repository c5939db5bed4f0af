// command_line.h: what the programs' command lines share: options with choices and ranges, help, one-line
//   errors. CLI11 splits the command line into options and values; this file checks the values and words
//   the errors. Not for .cu files, since nvcc need not read CLI11: a program with kernels parses in a
//   separate .cpp file and includes run_main.h.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "system/error.h"
#include "system/run_main.h"

inline const std::map<std::string, AttentionBackend> attentions = {{"auto", AttentionBackend::automatic},
                                                                   {"cudnn", AttentionBackend::cudnn},
                                                                   {"onednn", AttentionBackend::onednn},
                                                                   {"kernel", AttentionBackend::kernel}};

// Help for an argument that is passed to open_model.
inline constexpr char model_path_help[] =
    "a checkpoint, a run's folder (its newest checkpoint), a Hugging Face GPT-2, Llama, Qwen3 or nanochat "
    "folder, a .bin file of llm.c, or the name of a model in Hugging Face's cache, such as gpt2";
// Help for options that several programs have.
inline constexpr char best_help[] =
    "take a run's checkpoint with the lowest validation loss instead of its newest";
inline constexpr char dtype_help[] =
    "type of parameters and activations; tf32: fp32 with faster, less exact matrix products on a GPU";
inline constexpr char attention_help[] =
    "implementation of attention; auto: the fastest for the shape and the type";

// The largest count that an option takes; --help does not show a limit this large.
constexpr int most = 1 << 30;

// Adds --help and --version and parses. False: one of them was printed and there is nothing to do. Throws a
// one-line UsageError for a command line or --config file that app does not accept, and for an empty value
// (usually from "$UNSET") of any option outside may_be_empty.
bool parse(CLI::App& app, int argc, const char* const* argv, const std::set<std::string>& may_be_empty = {});

// An option has a wrong value. If the value is from a --config file, parse() adds its file and line.
class WrongValue : public UsageError {
public:
    WrongValue(std::string option, const std::string& message)
        : UsageError(message), option(std::move(option)) {}
    std::string option;
};

// "--steps abc; expected a whole number". A long value is cut; a value that is not a plain word is quoted.
std::string refusal_of(const std::string& option, const std::string& value, const std::string& expected);

// The words with `between` between them, such as "a, b".
std::string joined(const std::vector<std::string>& words, const std::string& between);

// All options of app, including those of its groups.
std::vector<const CLI::Option*> options_of(const CLI::App& app);

// The option with this name, such as "--steps" or "-x"; nullptr if there is none.
const CLI::Option* option_of_word(const CLI::App& app, const std::string& word);

// An option whose value is parsed by `set`, which throws an Error for a wrong value. kind: the value's
// placeholder in --help.
CLI::Option* add_parsed(CLI::App& app, const std::string& names, const std::string& kind,
                        const std::string& default_value, std::function<void(const std::string&)> set,
                        const std::string& help);
// An option whose value is any text. kind: "FILE", "GLOB" or another placeholder.
CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& target, const std::string& kind,
                      const std::string& help);
// An option with one or more values.
CLI::Option* add_texts(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                       const std::string& kind, const std::string& help);

// A file's name or pattern in square brackets, written so that CLI11 does not take it for a list of values.
std::string not_a_list(const std::string& value);

// Parses bytes, or a size in powers of 1024: "40G", "512M", "1.5G". UsageError, which names the option, for
// anything else.
size_t parse_bytes(const std::string& option, const std::string& text);

// The whole text as a decimal number; std::nullopt if it is not one, or if Value cannot hold it.
template <class Value>
std::optional<Value> parse_number(const std::string& text) {
    Value value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

template <class Value>
Value number_between(const std::string& option, const std::string& text, Value low, Value high) {
    const std::optional<Value> value = parse_number<Value>(text);
    if (value && *value >= low && *value <= high) return *value;
    throw UsageError(
        refusal_of(option, text,
                   fmt::format("a {}number from {} to {}", std::integral<Value> ? "whole " : "", low, high)));
}

// The option's name in errors: "--steps" for "-x,--steps".
inline std::string name_in_errors(const std::string& names) { return names.substr(names.rfind(',') + 1); }

// An option whose value is a number from low to high.
template <class Value>
CLI::Option* add_number(CLI::App& app, const std::string& names, Value& target,
                        std::type_identity_t<Value> low, std::type_identity_t<Value> high,
                        const std::string& help) {
    const auto set = [&target, low, high, option = name_in_errors(names)](const std::string& text) {
        target = number_between(option, text, low, high);
    };
    const std::string range = static_cast<double>(high) < most ? fmt::format(" ({} to {})", low, high) : "";
    return add_parsed(app, names, std::integral<Value> ? "N" : "X", fmt::format("{}", target), set,
                      help + range);
}

template <class Value>
std::string name_of(const std::map<std::string, Value>& names, Value value) {
    for (const auto& [name, v] : names) {
        if (v == value) return name;
    }
    throw Error("an option has a value without a name");
}

// An option whose values are the keys of a map, which must outlive app. --help shows them as a|b|c; any
// other value is an error.
template <class Value>
CLI::Option* add_choice(CLI::App& app, const std::string& names, Value& target,
                        const std::map<std::string, Value>& values, const std::string& help) {
    std::string choices;
    for (const auto& [name, value] : values) choices += (choices.empty() ? "" : "|") + name;
    const auto set = [&target, &values, option = name_in_errors(names), choices](const std::string& text) {
        const auto found = values.find(text);
        if (found == values.end()) throw UsageError(refusal_of(option, text, choices));
        target = found->second;
    };
    return add_parsed(app, names, choices, name_of(values, target), set, help);
}

// The same for values that are the words themselves, in this order.
CLI::Option* add_word(CLI::App& app, const std::string& names, std::string& target,
                      const std::vector<std::string>& words, const std::string& help);
// The same; the value may also be the path of an existing file or folder.
CLI::Option* add_word_or_file(CLI::App& app, const std::string& names, std::string& target,
                              const std::vector<std::string>& words, const std::string& help);
