// json_text.h: reads JSON from files that may be damaged or hostile.
#pragma once
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// Parses a text. The value is discarded (is_discarded()) if the text is not JSON or is nested more than
// 64 levels deep. Copying, comparing or printing a value takes stack for each level, and a hostile text
// may have a million. The files of this project stay below 64.
nlohmann::json parse_json(std::string_view text);

// A line of JSON that another program wrote.
struct ReadJson {
    nlohmann::json value;   // discarded if the line is not JSON
    bool replaced = false;  // halves of surrogate pairs were replaced by U+FFFD
    std::string problem{};  // of a discarded value: what is wrong, and in which column (in bytes, from 1)
};

// As parse_json, and accepts what Python's json module writes and reads: NaN and Infinity outside of texts
// become null. Half of a surrogate pair and bytes that are not UTF-8 become U+FFFD.
ReadJson read_json(std::string_view line);

// The note on `count` lines with such halves, each of which is called `what`.
std::string replaced_halves(size_t count, const std::string& what);

// The JSON object in a file. UsageError if the file cannot be read or holds anything else.
nlohmann::json read_json_object(const std::string& path);

// A value or name from a file, for a message: one short line of harmless characters.
std::string shown(const nlohmann::json& value);

// A text without its quotes; any other value as JSON.
std::string plain_text(const nlohmann::json& value);

// The value as a whole number from 0 to the maximum of Int. json::type_error for anything else, such as
// 1.5, 1e300 and 2^64 - 1, which get<Int>() would convert silently.
template <class Int>
Int whole_number(const nlohmann::json& value) {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<Int>::max()))
        throw nlohmann::json::type_error::create(302, "type must be a whole number", &value);
    return value.get<Int>();
}
