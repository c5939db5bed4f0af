// temporary_folder.h: a folder for the files of one test, and checks of error messages
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "system/error.h"

class TemporaryFolder {
public:
    TemporaryFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "flatgpt-test-XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr) throw Error("no temporary folder can be made at " + name);
        path_ = name;
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    std::string operator/(const std::string& name) const { return path_ + "/" + name; }
    const std::string& path() const { return path_; }
    // Writes a file and returns its path.
    std::string write(const std::string& name, const std::string& bytes) const {
        std::ofstream(*this / name, std::ios::binary) << bytes;
        return *this / name;
    }
    std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(path_))
            names.push_back(entry.path().filename());
        return names;
    }

private:
    std::string path_;
};

inline std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// True if the text contains the words. The text is printed otherwise.
inline testing::AssertionResult says(const std::string& text, const std::string& words) {
    const bool found = text.find(words) != std::string::npos;
    return testing::AssertionResult(found) << "'" << words << (found ? "' is in: " : "' is not in: ") << text;
}

// The message of the E that action throws, checked to be a single line.
template <class E, class Action>
std::string message_of(Action action) {
    try {
        action();
    } catch (const E& error) {
        const std::string message = error.what();
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        return message;
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
}
