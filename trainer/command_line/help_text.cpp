#include "trainer/command_line/help_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <sstream>
#include <string_view>

#include "system/version.h"
#include "trainer/command_line/command_line.h"

namespace {

std::vector<Example> examples_of(const CLI::App& app) {
    std::vector<Example> examples;
    std::istringstream lines(app.get_footer());
    for (Example example; std::getline(lines, example.what) && std::getline(lines, example.command);)
        examples.push_back(example);
    return examples;
}

// The options of a program or a group: the named or the positional ones. A group's inherited --help is left
// out.
std::vector<const CLI::Option*> options_in(const CLI::App& group, bool positional) {
    std::vector<const CLI::Option*> options;
    for (const CLI::Option* option : group.get_options()) {
        const bool inherited = group.get_parent() != nullptr && option == group.get_help_ptr();
        if (option->get_positional() == positional && !inherited) options.push_back(option);
    }
    return options;
}

// The positional arguments in a usage line, such as " FILE... [OTHER]". shown() formats each name.
std::string usage_of_arguments(const CLI::App& app,
                               const std::function<std::string(const std::string&)>& shown) {
    std::string text;
    for (const CLI::Option* option : options_in(app, true)) {
        const std::string word =
            shown(option->get_name(true)) + (option->get_items_expected_max() > 1 ? "..." : "");
        text += option->get_required() ? " " + word : " [" + word + "]";
    }
    return text;
}

// The placeholder of an option's value: "N", "bf16|fp32|tf32"; "" for a flag.
std::string kind_of(const CLI::Option& option) {
    return option.get_items_expected_max() == 0 ? "" : option.get_type_name();
}

// An option's description, with its default in [brackets].
std::string description_of(const CLI::Option& option) {
    std::string text = option.get_description();
    const bool flag = option.get_items_expected_max() == 0;
    if (option.get_required() && !option.get_positional()) text += " (required)";
    if (!flag && !option.get_default_str().empty()) text += " [" + option.get_default_str() + "]";
    return text;
}

constexpr size_t help_width = 100, help_indent = 30;

// Wraps the text beside a first column, which is on a line of its own if it is too wide.
std::string two_columns(const std::string& first, std::string_view text) {
    std::string lines = "  " + first;
    if (lines.size() + 2 > help_indent) lines += "\n" + std::string(help_indent, ' ');
    else lines.resize(help_indent, ' ');
    size_t column = help_indent;
    for (size_t end; !text.empty(); text.remove_prefix(std::min(end + 1, text.size()))) {
        end = std::min(text.find(' '), text.size());
        if (column > help_indent && column + 1 + end > help_width) {
            lines += "\n" + std::string(help_indent, ' ');
            column = help_indent;
        }
        lines += (column > help_indent ? " " : "") + std::string(text.substr(0, end));
        column += (column > help_indent ? 1 : 0) + end;
    }
    return lines + "\n";
}

std::string option_lines(const CLI::Option& option, bool positional) {
    const std::string kind = positional ? "" : kind_of(option);
    const std::string many = positional && option.get_items_expected_max() > 1 ? "..." : "";
    return two_columns(option.get_name(positional, !positional) + many + (kind.empty() ? "" : " " + kind),
                       description_of(option));
}

// A group's options under a heading; empty if it has none.
std::string group_lines(const CLI::App& group, const std::string& heading, bool positional) {
    std::string lines;
    for (const CLI::Option* option : options_in(group, positional))
        lines += option_lines(*option, positional);
    return lines.empty() ? "" : "\n" + heading + ":\n" + lines;
}

// Escapes text for troff, in which a backslash begins a command, as does a dot or an apostrophe at the
// start of a line, and a bare dash prints as a hyphen.
std::string troff(const std::string& text) {
    std::string escaped = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
    for (const char c : text) {
        if (c == '\\') escaped += "\\e";
        else if (c == '-') escaped += "\\-";
        else escaped += c;
    }
    return escaped;
}

std::vector<std::string> names_of(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
    return names;
}

std::string man_entry(const CLI::Option& option) {
    std::vector<std::string> names = names_of(option);
    for (std::string& name : names) name = "\\fB" + troff(name) + "\\fR";
    const bool positional = names.empty();
    std::string head =
        positional ? fmt::format("\\fI{}\\fR", troff(option.get_name(true))) : joined(names, ", ");
    if (const std::string kind = kind_of(option); !positional && !kind.empty())
        head += fmt::format(" \\fI{}\\fR", troff(kind));
    return fmt::format(".TP\n{}\n{}\n", head, troff(description_of(option)));
}

std::string man_entries(const CLI::App& group, bool positional) {
    std::string text;
    for (const CLI::Option* option : options_in(group, positional)) text += man_entry(*option);
    return text;
}

std::vector<std::string> words_of(const std::string& choices) {
    std::istringstream text(choices);
    std::vector<std::string> words;
    for (std::string word; std::getline(text, word, '|');) words.push_back(word);
    return words;
}

// The words that the option's value may be; none if it is not a choice.
std::vector<std::string> choices_of(const CLI::Option& option) {
    const std::string kind = kind_of(option);
    const bool lowercase =
        std::none_of(kind.begin(), kind.end(), [](unsigned char c) { return std::isupper(c); });
    return kind.find('|') != kind.npos && lowercase ? words_of(kind) : std::vector<std::string>();
}

bool names_a_file(const CLI::Option& option) {
    const std::string kind = kind_of(option);
    return kind.starts_with("FILE") || kind.ends_with("|FILE") || kind == "PATH" || kind == "DIR" ||
           kind == "GLOB";
}

}  // namespace

// The examples are stored as CLI11's footer, two lines each.
void set_examples(CLI::App& app, const std::vector<Example>& examples) {
    std::string footer;
    for (const Example& example : examples) footer += example.what + "\n" + example.command + "\n";
    app.footer(footer);
}

std::string help_text(const CLI::App& app) {
    std::string text = app.get_description() + "\nusage: " + app.get_name() + " [OPTION...]";
    text += usage_of_arguments(app, [](const std::string& name) { return name; });
    text += "\nDefaults are in [brackets].\n" + group_lines(app, "arguments", true) +
            group_lines(app, "options", false);
    for (const CLI::App* group : app.get_subcommands(nullptr))
        text += group_lines(*group, group->get_group(), false);
    const std::vector<Example> examples = examples_of(app);
    if (!examples.empty()) text += "\nexamples:\n";
    for (const Example& example : examples) text += "  " + example.what + ":\n    " + example.command + "\n";
    return text;
}

std::string man_page(const CLI::App& app, const std::string& program) {
    std::string upper = program;
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const std::string description = app.get_description(),
                      sentence = description.substr(0, description.find('.'));
    std::string text = fmt::format(".TH {} 1 \"\" \"flatgpt {}\" flatgpt\n.SH NAME\n{} \\- {}\n",
                                   troff(upper), version, troff(program), troff(sentence));
    text += fmt::format(".SH SYNOPSIS\n.B {}\n[\\fIOPTION\\fR...]", troff(program));
    text += usage_of_arguments(app, [](const std::string& name) { return "\\fI" + troff(name) + "\\fR"; });
    text += fmt::format("\n.SH DESCRIPTION\n{}\nDefaults are in [brackets].\n", troff(description));
    if (const std::string arguments = man_entries(app, true); !arguments.empty())
        text += ".SH ARGUMENTS\n" + arguments;
    text += ".SH OPTIONS\n" + man_entries(app, false);
    for (const CLI::App* group : app.get_subcommands(nullptr))
        text += fmt::format(".SS {}\n{}", troff(group->get_group()), man_entries(*group, false));
    text += ".SH EXAMPLES\n";
    for (const Example& example : examples_of(app))
        text += fmt::format(".PP\n{}:\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", troff(example.what),
                            troff(example.command));
    return text +
           ".SH EXIT STATUS\n0 on success, 2 if the command line or an input is wrong, 1 after any other "
           "failure.\n";
}

std::string bash_completion(const CLI::App& app, const std::string& program) {
    std::vector<std::string> all, free;
    std::string cases, files;
    for (const CLI::Option* option : options_of(app)) {
        const std::vector<std::string> names = names_of(*option);
        if (names.empty()) continue;
        for (const std::string& name : names) {
            if (name.starts_with("--")) all.push_back(name);
        }
        const std::string pattern = joined(names, " | ");
        const std::vector<std::string> choices = choices_of(*option);
        if (!choices.empty())
            cases += fmt::format("        {}) mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\") ;;\n",
                                 pattern, joined(choices, " "));
        else if (names_a_file(*option)) files += (files.empty() ? "" : " | ") + pattern;
        else if (!kind_of(*option).empty()) free.push_back(pattern);
    }
    return fmt::format(R"(# bash completion for {0}, flatgpt {1}
_flatgpt_{0}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
    if [ "$word" = = ]; then
        word=
    elif [ "$before" = = ]; then  # --option=value is three words
        before=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    COMPREPLY=()
    case $before in
{2}        {3}) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
        {4}) ;;
        *)
            case $word in
                -*) mapfile -t COMPREPLY < <(compgen -W '{5}' -- "$word") ;;
                *) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
            esac
            ;;
    esac
}}
complete -o filenames -F _flatgpt_{0} {0}
)",
                       program, version, cases, files.empty() ? "-" : files,
                       free.empty() ? "-" : joined(free, " | "), joined(all, " "));
}
