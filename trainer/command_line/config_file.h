// config_file.h: reads the file of --config, which has one option per line, under its name on the command
// line.
//   lr = 0.0006
//   train-data = "data/a folder/*.bin"    # quotes keep outer blanks and '#'
//   deterministic                         # a flag; = true and = false work too
//   An option on the command line takes precedence over the file: over the same option, and over one that it
//   excludes, so that --epochs 2 replaces the file's steps = 1000.
#pragma once
#include <CLI/CLI.hpp>
#include <istream>
#include <map>
#include <string>
#include <vector>

class ConfigFile : public CLI::Config {
public:
    explicit ConfigFile(const CLI::App& app) : app_(app) {}

    // UsageError with file and line for an unknown option, a missing value, or an option that is given
    // twice.
    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
    // never used: no program writes such a file
    std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

    // "--config FILE, line 3: " if the option's value is from the file, else "".
    std::string location_of(const std::string& option) const;

private:
    std::string location(int line) const;

    const CLI::App& app_;
    mutable std::map<std::string, int> lines_;  // line numbers of the options that the file sets
};

// UsageError if the path is not a readable regular file: a pipe can be read only once, and a device may
// never end.
void check_config_path(const std::string& path);
