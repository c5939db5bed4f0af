#include "command_line.h"

#include "version.h"

std::string to_string(DType dtype) { return name_of(dtypes, dtype); }

bool parse(CLI::App& app, int argc, const char* const* argv) {
    app.set_version_flag("--version", fmt::format("flatgpt {}", version));
    try {
        app.parse(argc, argv);
        return true;
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) {
            app.exit(error);
            return false;
        }
        std::string message = error.what();
        for (char& c : message) c = c == '\n' ? ' ' : c;
        throw UsageError(fmt::format("{}; see {} --help", message, app.get_name()));
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
