#include "command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "version.h"

namespace {

constexpr char empty_value[] = "{} has an empty value; expected one, or to leave it out";

// Those of the groups too.
std::vector<const CLI::Option*> options_of(const CLI::App& app) {
    std::vector<const CLI::Option*> options = app.get_options();
    for (const CLI::App* group : app.get_subcommands(nullptr)) {
        const std::vector<const CLI::Option*> more = options_of(*group);
        options.insert(options.end(), more.begin(), more.end());
    }
    return options;
}

void check_not_empty(const CLI::App& app, const std::set<std::string>& may_be_empty) {
    for (const CLI::Option* option : options_of(app)) {
        const auto& values = option->results();
        const bool empty = std::find(values.begin(), values.end(), "") != values.end();
        CHECK(!empty || may_be_empty.contains(option->get_name()), empty_value, option->get_name());
    }
}

// CLI11 reads unsigned numbers by strtoull, which wraps negative ones and saturates.
void check_unsigned(const CLI::App& app) {
    for (const CLI::Option* option : options_of(app)) {
        if (!option->get_type_name().starts_with("UINT")) continue;
        for (const std::string& text : option->results()) {
            errno = 0;
            std::strtoull(text.c_str(), nullptr, 0);
            CHECK(errno == 0 && text.find('-') == text.npos, "{} {}; expected a number from 0 to {}", option->get_name(), text, UINT64_MAX);
        }
    }
}

// CLI11's words, where they can be understood, in one line.
std::string message_of(const CLI::ParseError& error, const CLI::App& app) {
    std::string message = error.what();
    if (dynamic_cast<const CLI::ConfigError*>(&error)) {
        const std::string file = app.get_config_ptr()->results().front(), before = "INI was not able to parse ";
        if (message.starts_with(before)) {
            const std::string name = message.substr(before.size());
            const bool text = std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > 0x20 && c < 0x7F; });
            message = text && name.size() < 80 ? fmt::format("'{}' is not an option's name", name) : "is not a text of options";
        }
        return fmt::format("--config {}: {}; expected lines like lr = 0.0006", file, message);
    }
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
        for (const CLI::Option* option : options_of(app)) {
            const size_t given = option->count();
            if (option->get_items_expected_max() == 1 && given > 1)
                return fmt::format("{} is given {} times; expected once", option->get_name(), given);
        }
    }
    for (char& c : message) c = c == '\n' ? ' ' : c;
    return message;
}

}  // namespace

std::string to_string(DType dtype) { return name_of(dtypes, dtype); }

bool parse(CLI::App& app, int argc, const char* const* argv, const std::set<std::string>& may_be_empty) {
    for (const std::string_view word : std::span(argv, static_cast<size_t>(argc))) {
        // CLI11 would take the next word for the value of "--out=".
        const bool empty = word.starts_with("--") && word.ends_with('=') && word.find_first_of("= ") == word.size() - 1;
        CHECK(!empty, empty_value, word.substr(0, word.size() - 1));
    }
    app.set_version_flag("--version", fmt::format("flatgpt {}", version));
    try {
        app.parse(argc, argv);
        check_not_empty(app, may_be_empty);
        check_unsigned(app);
        return true;
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) {
            app.exit(error);
            return false;
        }
        check_not_empty(app, may_be_empty);
        throw UsageError(fmt::format("{}; see {} --help", message_of(error, app), app.get_name()));
    }
}

size_t parse_bytes(const std::string& option, const std::string& text) {
    size_t used = 0;
    double value = 0;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception&) {}
    static const std::map<std::string, double> units = {{"", 1.0}, {"K", 0x1p10}, {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}};
    const auto unit = units.find(used == 0 ? "?" : text.substr(used));
    CHECK(unit != units.end() && value > 0 && value * unit->second < 0x1p60, "{} {}; expected a size like 40G or 512M", option, text);
    return static_cast<size_t>(value * unit->second);
}

CLI::Validator between(double low, double high) {
    return CLI::Validator(
        [=](const std::string& text) {
            double value = 0;
            const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return inside ? std::string() : fmt::format("{} is not a number from {} to {}", text, low, high);
        },
        fmt::format("FLOAT in [{} - {}]", low, high));
}
