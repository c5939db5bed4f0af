#include "trainer/command_line/help_text.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

namespace {

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

}  // namespace

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

std::vector<const CLI::Option*> options_in(const CLI::App& group, bool positional) {
    std::vector<const CLI::Option*> options;
    for (const CLI::Option* option : group.get_options()) {
        const bool inherited = group.get_parent() != nullptr && option == group.get_help_ptr();
        if (option->get_positional() == positional && !inherited) options.push_back(option);
    }
    return options;
}

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

// The examples are stored as CLI11's footer, two lines each.
void set_examples(CLI::App& app, const std::vector<Example>& examples) {
    std::string footer;
    for (const Example& example : examples) footer += example.what + "\n" + example.command + "\n";
    app.footer(footer);
}

std::vector<Example> examples_of(const CLI::App& app) {
    std::vector<Example> examples;
    std::istringstream lines(app.get_footer());
    for (Example example; std::getline(lines, example.what) && std::getline(lines, example.command);)
        examples.push_back(example);
    return examples;
}

std::string kind_of(const CLI::Option& option) {
    return option.get_items_expected_max() == 0 ? "" : option.get_type_name();
}

std::string description_of(const CLI::Option& option) {
    std::string text = option.get_description();
    const bool flag = option.get_items_expected_max() == 0;
    if (option.get_required() && !option.get_positional()) text += " (required)";
    if (!flag && !option.get_default_str().empty()) text += " [" + option.get_default_str() + "]";
    return text;
}
