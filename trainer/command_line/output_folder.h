// output_folder.h: the folder of --out, which a program that fails does not leave behind
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "system/error.h"

// Makes the folder. The destructor removes the folders that were made if they are still empty.
class OutputFolder {
public:
    explicit OutputFolder(const std::string& path) {
        namespace fs = std::filesystem;
        std::error_code failed;
        for (fs::path folder = (fs::absolute(path).lexically_normal() / "").parent_path();
             folder.has_relative_path() && !fs::exists(folder, failed); folder = folder.parent_path())
            made_.push_back(folder);
        fs::create_directories(path, failed);
        if (failed) remove_empty();
        CHECK(!failed, "--out {}: the folder cannot be made: {}", path, failed.message());
    }
    ~OutputFolder() { remove_empty(); }
    OutputFolder(const OutputFolder&) = delete;

private:
    void remove_empty() const {
        std::error_code ignored;
        for (const std::filesystem::path& folder : made_) std::filesystem::remove(folder, ignored);
    }
    std::vector<std::filesystem::path> made_;  // the innermost first
};
