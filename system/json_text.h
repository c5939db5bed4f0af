// json_text.h: JSON that somebody else wrote.
#pragma once
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// The value; discarded (is_discarded()) if the text is not JSON, or nested more than 64 deep, as no file of
// ours is: to copy, compare or print a value takes stack for every level, and a hostile text has a million of
// them.
nlohmann::json parse_json(std::string_view text);

// The object that a file holds; UsageError if it cannot be read or holds anything else.
nlohmann::json read_json_object(const std::string& path);

// A value, or a name, from a file as it stands in a message: one line of harmless characters, and not a long
// one.
std::string shown(const nlohmann::json& value);

// The whole number that the value is, from 0 to what an Int holds; json::type_error for anything else, where
// get<Int>() would make something of 1.5, 1e300 and 2^64 - 1.
template <class Int>
Int whole_number(const nlohmann::json& value) {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<Int>::max()))
        throw nlohmann::json::type_error::create(302, "type must be a whole number", &value);
    return value.get<Int>();
}
