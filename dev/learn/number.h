// number.h: the numbers on an experiment's command line
#pragma once
#include <charconv>
#include <string_view>

#include "system/error.h"

// UsageError for anything but a number above 0.
template <class Number>
Number number(std::string_view text) {
    Number value{};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    CHECK(error == std::errc() && rest == end && value > 0, "'{}'; expected a number above 0", text);
    return value;
}
