#include "trainer/command_line/command_line.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>

#include "system/version.h"
#include "trainer/command_line/config_file.h"
#include "trainer/command_line/help_text.h"
#include "trainer/command_line/near_names.h"

namespace {

constexpr char empty_value[] = "{} has an empty value; give it a value or leave it out";

void check_not_empty(const CLI::App& app, const std::set<std::string>& may_be_empty) {
    for (const CLI::Option* option : options_of(app)) {
        const auto& values = option->results();
        const bool empty = std::find(values.begin(), values.end(), "") != values.end();
        CHECK(!empty || may_be_empty.contains(option->get_name()), empty_value, option->get_name());
    }
}

// The words as CLI11 must see them to read them as they are meant.
std::vector<std::string> words_for_cli11(const CLI::App& app, std::span<const char* const> given) {
    std::vector<std::string> words;
    const CLI::Option* before = nullptr;  // the option whose value this word is
    bool only_files = false;              // after "--"
    for (const std::string word : given) {
        CHECK(!word.empty() || before, "a word of the command line is empty; leave it out");
        const bool is_value = before || only_files;
        // "--name=value", or "-nVALUE"
        const size_t equals = word.starts_with("--") ? word.find_first_of("= ") : word.npos;
        const bool is_long = equals != word.npos && word[equals] == '=';
        const std::string name = word.substr(0, is_long ? equals : word.starts_with("--") ? word.npos : 2);
        const CLI::Option* const own = is_value ? nullptr : option_of_word(app, name);
        const size_t value = is_value || !own ? 0 : name.size() + (is_long ? 1 : 0);
        // CLI11 would take the next option as the value of the one before,
        CHECK(!before || !option_of_word(app, is_long ? name : word),
              "{0} has no value; {1} follows it; if that is the value, write {0}={1}", before->get_name(),
              word);
        // and the next word as the value of "--out=",
        CHECK(!own || !is_long || value < word.size(), empty_value, name);
        // and would divide "[a,b]".
        const CLI::Option* const of_value = before ? before : own;
        const bool is_list = !of_value || of_value->get_allow_extra_args();
        words.push_back(is_list ? word.substr(0, value) + not_a_list(word.substr(value)) : word);
        only_files |= word == "--" && !before;
        before = own && value == word.size() && own->get_items_expected_min() > 0 ? own : nullptr;
    }
    return words;
}

// CLI11 would accept --plan=2 as true.
void check_flags(const CLI::App& app) {
    for (const CLI::Option* option : options_of(app)) {
        if (option->get_items_expected_max() > 0) continue;
        for (const std::string& value : option->results())
            CHECK(value == "true" || value == "false", "{}={}; expected {} alone, or true or false",
                  option->get_name(), value, option->get_name());
    }
}

std::string message_of_mismatch(const CLI::App& app, const std::string& message) {
    for (const CLI::Option* option : options_of(app)) {
        const size_t given = option->count();
        if (option->get_items_expected_max() == 1 && given > 1)
            return fmt::format("{} is given {} times; expected once", option->get_name(), given);
    }
    for (const CLI::Option* option : options_of(app)) {
        if (message.starts_with(option->get_name() + ":"))
            return fmt::format("{} has no value; expected one after it", option->get_name());
    }
    return message;
}

std::string message_of_exclusion(const CLI::App& app, const std::string& message) {
    for (const CLI::Option* option : options_of(app)) {
        for (const CLI::Option* other : option->get_excludes()) {
            if (option->count() > 0 && other->count() > 0)
                return fmt::format("{} and {} exclude each other; expected only one of them",
                                   option->get_name(), other->get_name());
        }
    }
    return message;
}

std::string message_of_extra(const CLI::App& app) {
    const std::string word = app.remaining(true).at(0);
    if (word.starts_with('-'))
        return fmt::format("{} is not an option{}", word.substr(0, std::min(word.find('='), size_t{80})),
                           did_you_mean(app, word));
    const std::vector<const CLI::Option*> options = options_of(app);
    const bool globs = std::any_of(options.begin(), options.end(), [](const CLI::Option* o) {
        return o->count() > 0 && o->get_type_name() == "GLOB";
    });
    return fmt::format("'{}' is not the value of any option{}", word.substr(0, 80),
                       globs ? "; a glob needs quotes, such as 'data/*.bin'" : "");
}

// Rewords an error of CLI11 as one line.
std::string message_of(const CLI::ParseError& error, const CLI::App& app) {
    std::string message = error.what();
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) return message_of_extra(app);
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) return message_of_mismatch(app, message);
    if (dynamic_cast<const CLI::ExcludesError*>(&error)) return message_of_exclusion(app, message);
    for (char& c : message) c = c == '\n' ? ' ' : c;
    return message;
}

void parse_words(CLI::App& app, int argc, const char* const* argv,
                 const std::set<std::string>& may_be_empty) {
    const auto file = std::make_shared<ConfigFile>(app);
    app.config_formatter(file);
    std::vector<std::string> words =
        words_for_cli11(app, std::span(argv, static_cast<size_t>(argc)).subspan(1));
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    try {
        app.parse(words);
    } catch (const WrongValue& wrong) {
        throw UsageError(file->location_of(wrong.option) + wrong.what());
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) throw;
        check_not_empty(app, may_be_empty);
        check_flags(app);
        const std::string message = message_of(error, app);
        throw UsageError(message.ends_with('?') ? message
                                                : fmt::format("{}; see {} --help", message, app.get_name()));
    }
    // Newer versions of CLI11 would read several files.
    const CLI::Option* const config = app.get_config_ptr();
    const size_t configs = config ? config->count() : 0;
    CHECK(configs <= 1, "--config is given {} times; expected once; see {} --help", configs, app.get_name());
    check_not_empty(app, may_be_empty);
    check_flags(app);
}

// Options for make install, which --help does not show.
bool print_for_shell(const CLI::App& app, const char* const* argv) {
    const std::string word = argv[1], program = std::filesystem::path(argv[0]).filename();
    if (word == "--print-man-page") write_output(man_page(app, program), "the man page");
    else if (word == "--print-bash-completion") write_output(bash_completion(app, program), "the completion");
    else return false;
    return true;
}

}  // namespace

std::string joined(const std::vector<std::string>& words, const std::string& between) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
    return text;
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
    std::vector<const CLI::Option*> options = app.get_options();
    for (const CLI::App* group : app.get_subcommands(nullptr)) {
        const std::vector<const CLI::Option*> more = options_of(*group);
        options.insert(options.end(), more.begin(), more.end());
    }
    return options;
}

const CLI::Option* option_of_word(const CLI::App& app, const std::string& word) {
    if (!word.starts_with('-')) return nullptr;
    for (const CLI::Option* option : options_of(app)) {
        if (option->check_name(word)) return option;
    }
    return nullptr;
}

bool parse(CLI::App& app, int argc, const char* const* argv, const std::set<std::string>& may_be_empty) {
    app.set_help_flag("-h,--help", "print this help and exit");
    app.set_version_flag("--version", fmt::format("flatgpt {}", version), "print the version and exit");
    if (argc == 2 && print_for_shell(app, argv)) return false;
    try {
        parse_words(app, argc, argv, may_be_empty);
        return true;
    } catch (const CLI::CallForVersion& version_text) {
        write_output(std::string(version_text.what()) + "\n", "the version");
    } catch (const CLI::Success&) { write_output(help_text(app), "the help text"); }
    return false;
}

std::string refusal_of(const std::string& option, const std::string& value, const std::string& expected) {
    const bool plain = !value.empty() && value.size() <= 60 && value.find_first_of(" \t\n'\"") == value.npos;
    const std::string shown = plain                ? value
                              : value.size() <= 60 ? "'" + value + "'"
                                                   : "'" + value.substr(0, 50) + "...'";
    return fmt::format("{} {}; expected {}", option, shown, expected);
}

CLI::Option* add_parsed(CLI::App& app, const std::string& names, const std::string& kind,
                        const std::string& default_value, std::function<void(const std::string&)> set,
                        const std::string& help) {
    const auto take = [set = std::move(set), option = name_in_errors(names)](const std::string& text) {
        try {
            CHECK(!text.empty(), empty_value, option);
            set(text);
        } catch (const Error& wrong) { throw WrongValue(option, wrong.what()); }
    };
    return app.add_option_function<std::string>(names, take, help)
        ->type_name(kind)
        ->default_str(default_value);
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& target, const std::string& kind,
                      const std::string& help) {
    return app.add_option(names, target, help)->type_name(kind)->default_str(target);
}

CLI::Option* add_texts(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                       const std::string& kind, const std::string& help) {
    return app.add_option(names, target, help)->type_name(kind)->default_str("");
}

static CLI::Option* add_known(CLI::App& app, const std::string& names, std::string& target,
                              const std::vector<std::string>& words, bool files_too,
                              const std::string& help) {
    const std::string choices = joined(words, "|") + (files_too ? "|FILE" : "");
    const auto set = [=, &target, option = name_in_errors(names)](const std::string& text) {
        std::error_code absent;
        const bool known = std::find(words.begin(), words.end(), text) != words.end() ||
                           (files_too && std::filesystem::exists(text, absent));
        CHECK(absent != std::errc::permission_denied && absent != std::errc::too_many_symbolic_link_levels,
              "{} {}: {}", option, text, absent.message());
        if (!known) throw UsageError(refusal_of(option, text, choices));
        target = text;
    };
    return add_parsed(app, names, choices, target, set, help);
}

CLI::Option* add_word(CLI::App& app, const std::string& names, std::string& target,
                      const std::vector<std::string>& words, const std::string& help) {
    return add_known(app, names, target, words, false, help);
}

CLI::Option* add_word_or_file(CLI::App& app, const std::string& names, std::string& target,
                              const std::vector<std::string>& words, const std::string& help) {
    return add_known(app, names, target, words, true, help);
}

std::string not_a_list(const std::string& value) {
    return value.starts_with('[') && value.ends_with(']') ? "./" + value : value;
}

size_t parse_bytes(const std::string& option, const std::string& text) {
    static const std::map<char, double> units = {{'K', 0x1p10}, {'M', 0x1p20}, {'G', 0x1p30}, {'T', 0x1p40}};
    const auto unit = text.empty() ? units.end() : units.find(text.back());
    const bool plain = unit == units.end();
    const double value = parse_number<double>(plain ? text : text.substr(0, text.size() - 1)).value_or(-1) *
                         (plain ? 1 : unit->second);
    if (!(value > 0 && value < 0x1p60)) throw UsageError(refusal_of(option, text, "a size like 40G or 512M"));
    return static_cast<size_t>(value);
}
