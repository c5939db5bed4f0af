#include "trainer/command_line/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "system/text_encoding.h"
#include "trainer/command_line/command_line.h"
#include "trainer/command_line/near_names.h"

namespace {

constexpr char example[] = "expected lines like lr = 0.0006";

struct ConfigLine {
    std::string name;
    std::optional<std::string> value;
};

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
    return first == text.npos ? "" : text.substr(first, last + 1 - first);
}

// The text up to a comment. A comment begins with a # at the start or after a blank.
std::string without_comment(const std::string& text) {
    for (size_t at = text.find('#'); at != text.npos; at = text.find('#', at + 1)) {
        if (at == 0 || text[at - 1] == ' ' || text[at - 1] == '\t') return trimmed(text.substr(0, at));
    }
    return trimmed(text);
}

std::string value_in(const std::string& text, const std::string& where) {
    const char quote = text.empty() ? ' ' : text.front();
    if (quote != '"' && quote != '\'') return without_comment(text);
    const size_t end = text.find(quote, 1);
    CHECK(end != text.npos, "{}the quote {} is not closed; {}", where, text, example);
    const std::string rest = without_comment(trimmed(text.substr(end + 1)));
    CHECK(rest.empty(), "{}'{}' follows the quoted value; {}", where, rest, example);
    return text.substr(1, end - 1);
}

// std::nullopt for a line without an option.
std::optional<ConfigLine> read_config_line(const std::string& line, const std::string& where) {
    const bool text = std::all_of(line.begin(), line.end(), [](unsigned char c) {
        return c >= 0x20 ? c != 0x7F : c == '\t' || c == '\r';
    });
    CHECK(text && line.size() < 65536, "{}is not a line of text; {}", where, example);
    const std::string content = trimmed(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') return std::nullopt;
    CHECK(content.front() != '[', "{}{} begins a section, but this file has no sections; {}", where, content,
          example);
    const size_t equals = content.find('=');
    if (equals == content.npos) return ConfigLine{without_comment(content), std::nullopt};
    return ConfigLine{trimmed(content.substr(0, equals)),
                      value_in(trimmed(content.substr(equals + 1)), where)};
}

const CLI::Option* option_called(const CLI::App& app, const std::string& name) {
    const size_t dashes = std::min(name.find_first_not_of('-'), name.size());
    const std::string word = name.substr(dashes);
    return word.empty() ? nullptr : option_of_word(app, (word.size() == 1 ? "-" : "--") + word);
}

bool is_given(const CLI::Option* option) { return option->count() > 0; }

// True for an option in whose place several others can be given together, such as --model, of which --layers
// is a part. --steps and --epochs, which exclude each other, are none.
bool has_parts(const CLI::Option& option) {
    const std::set<CLI::Option*> others = option.get_excludes();
    return std::any_of(others.begin(), others.end(), [&](CLI::Option* a) {
        const std::set<CLI::Option*> excluded = a->get_excludes();
        return std::any_of(others.begin(), others.end(),
                           [&](CLI::Option* b) { return a != b && !excluded.contains(b); });
    });
}

// True if the command line gives this option, or all of its parts.
bool is_replaced(const CLI::Option& option) {
    const std::set<CLI::Option*> others = option.get_excludes();
    return is_given(&option) || std::all_of(others.begin(), others.end(), [](const CLI::Option* other) {
               return is_given(other) || has_parts(*other);
           });
}

// The command line wins over the file, also where it gives an option in place of the file's: --epochs for
// steps, --model for init-from, or all of --layers, --heads and --channels for model. But --layers alone is a
// part of what such a line says.
bool is_decided_by_command_line(const CLI::Option& option, const std::string& where) {
    const std::set<CLI::Option*> others = option.get_excludes();
    const auto given = std::find_if(others.begin(), others.end(), is_given);
    if (is_given(&option) || given == others.end()) return is_given(&option);
    const bool whole = !has_parts(option) || is_replaced(option) ||
                       std::any_of(others.begin(), others.end(), [](const CLI::Option* other) {
                           return has_parts(*other) && is_replaced(*other);
                       });
    CHECK(whole, "{}{} and the command line's {} exclude each other; expected only one of them", where,
          option.get_name(), (*given)->get_name());
    return true;
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

}  // namespace

std::string ConfigFile::location(int line) const {
    return fmt::format("--config {}, line {}: ", app_.get_config_ptr()->results().front(), line);
}

std::string ConfigFile::location_of(const std::string& option) const {
    const auto found = lines_.find(option);
    return found == lines_.end() ? "" : location(found->second);
}

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
    std::vector<CLI::ConfigItem> items;
    std::map<std::string, int> seen;
    int number = 0;
    for (std::string text; std::getline(input, text);) {
        const std::string where = location(++number);
        if (number == 1 && text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
        const std::optional<ConfigLine> line = read_config_line(text, where);
        if (!line) continue;
        const CLI::Option* const option = option_called(app_, line->name);
        if (!option) {
            const std::string meant = did_you_mean(app_, line->name);
            throw UsageError(fmt::format("{}'{}' is not an option's name{}", where, line->name.substr(0, 80),
                                         meant.empty() ? fmt::format("; {}", example) : meant));
        }
        const std::string name = option->get_name();
        CHECK(option->get_configurable(), "{}{} is for the command line only; remove this line", where, name);
        const auto [before, is_new] = seen.emplace(name, number);
        CHECK(is_new, "{}{} is given twice, also in line {}; expected once", where, name, before->second);
        CHECK(line->value || is_flag(*option), "{}{} has no value; {}", where, name, example);
        const std::string value = line->value.value_or("true");
        CHECK(!value.empty(), "{}{} has an empty value; give it a value or leave the line out", where, name);
        CHECK(!is_flag(*option) || value == "true" || value == "false",
              "{}{} is '{}'; expected true or false", where, name, value);
        std::error_code unknown;
        CHECK(!option->get_allow_extra_args() || value == not_a_list(value) ||
                  value.find(',') == value.npos || std::filesystem::exists(value, unknown),
              "{}{} is a list; expected one name or pattern, such as {{a.txt,b.txt}}", where, name);
        if (is_decided_by_command_line(*option, where)) continue;
        lines_[name] = number;
        items.emplace_back();
        items.back().name = name.substr(name.find_first_not_of('-'));
        items.back().inputs = {option->get_allow_extra_args() ? not_a_list(value) : value};
    }
    if (input.bad())
        throw Error(fmt::format("--config {}: cannot be read", app_.get_config_ptr()->results().front()));
    return items;
}

void check_config_path(const std::string& path) {
    CHECK(!path.empty(), "--config has an empty value; expected a text file of options");
    std::error_code failure;
    const auto type = std::filesystem::status(path, failure).type();
    CHECK(type != std::filesystem::file_type::not_found,
          "--config {}: there is no such file; expected a text file of options, one per line", path);
    CHECK(!failure, "--config {}: {}", path, failure.message());
    CHECK(type == std::filesystem::file_type::regular,
          "--config {}: is a {}; expected a text file of options, one per line", path,
          type == std::filesystem::file_type::directory ? "directory" : "device or a pipe");
    errno = 0;
    CHECK(std::ifstream(path).good(), "--config {}: cannot be opened: {}", path, std::strerror(errno));
}
