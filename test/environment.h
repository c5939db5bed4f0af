// environment.h: variables of the environment that a test changes
#pragma once
#include <cstdlib>
#include <optional>
#include <string>

// Sets a variable, or removes it if there is no value, for as long as this object lives.
class Variable {
public:
    explicit Variable(const char* name, const std::optional<std::string>& value = std::nullopt)
        : name_(name) {
        if (const char* before = std::getenv(name)) before_ = before;
        set(value);
    }
    ~Variable() { set(before_); }
    Variable(const Variable&) = delete;

private:
    void set(const std::optional<std::string>& value) const {
        if (value) setenv(name_, value->c_str(), 1);
        else unsetenv(name_);
    }
    const char* name_;
    std::optional<std::string> before_;
};
