// config_file.h: the file of --config, an option a line by its name on the command line.
//   lr = 0.0006
//   train-data = "data/a folder/*.bin"    # quotes keep blanks at the ends and what would be a comment
//   deterministic                         # a flag; = true and = false as well
//   What the command line gives counts instead of the file's value.
#pragma once
#include <CLI/CLI.hpp>
#include <istream>
#include <map>
#include <string>
#include <vector>

class ConfigFile : public CLI::Config {
public:
    explicit ConfigFile(const CLI::App& app) : app_(app) {}

    // UsageError with file and line for what is no option, has no value, or is given twice.
    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
    // nothing here writes one
    std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

    // "--config FILE, line 3: " if the option has its value from the file, else "".
    std::string place_of(const std::string& option) const;

private:
    std::string place(int line) const;

    const CLI::App& app_;
    mutable std::map<std::string, int> lines_;  // of the options that the file sets
};

// UsageError if the path is not a file that can be read: a pipe or a device would be read once only, or
// never end.
void check_config_path(const std::string& path);
