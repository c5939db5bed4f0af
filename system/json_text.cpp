#include "system/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "system/error.h"
#include "system/file_reader.h"
#include "system/printable.h"
#include "system/text_encoding.h"

using nlohmann::json;

static constexpr int most_levels = 64;

namespace {
struct TooDeep {};
}  // namespace

// Throws TooDeep, or the library's exception if `throws`; otherwise returns a discarded value.
static json parse_guarded(std::string_view text, bool throws) {
    const auto refuse_depth = [](int depth, json::parse_event_t event, json&) {
        const bool opens =
            event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
        if (opens && depth >= most_levels) throw TooDeep();
        return true;
    };
    return json::parse(text, refuse_depth, throws);
}

json parse_json(std::string_view text) {
    try {
        return parse_guarded(text, false);
    } catch (const TooDeep&) { return json(json::value_t::discarded); }
}

// The code unit of an escape \uXXXX at the front; -1 if there is none.
static int escaped_unit(std::string_view text) {
    if (text.size() < 6 || text[0] != '\\' || text[1] != 'u') return -1;
    int unit = 0;
    const auto [end, error] = std::from_chars(text.data() + 2, text.data() + 6, unit, 16);
    return error == std::errc() && end == text.data() + 6 ? unit : -1;
}

static bool is_high_surrogate(int unit) { return unit >= 0xD800 && unit < 0xDC00; }
static bool is_low_surrogate(int unit) { return unit >= 0xDC00 && unit < 0xE000; }

// The line with halves of surrogate pairs as \ufffd, and NaN and Infinity outside of strings as null.
static std::string as_strict_json(std::string_view line, bool& replaced) {
    std::string strict;
    bool in_string = false;
    while (!line.empty()) {
        size_t bytes = 1;
        std::string_view instead;
        if (in_string && line[0] == '\\') {
            const int unit = escaped_unit(line), next = unit < 0 ? -1 : escaped_unit(line.substr(6));
            const bool pair = is_high_surrogate(unit) && is_low_surrogate(next);
            bytes = pair ? 12 : unit >= 0 ? 6 : 2;
            if (!pair && (is_high_surrogate(unit) || is_low_surrogate(unit)))
                instead = "\\ufffd", replaced = true;
        } else if (line[0] == '"') {
            in_string = !in_string;
        } else if (!in_string) {
            for (const std::string_view word : {"-Infinity", "Infinity", "NaN"})
                if (line.starts_with(word)) instead = "null", bytes = word.size();
        }
        strict += instead.empty() ? line.substr(0, bytes) : instead;
        line.remove_prefix(std::min(bytes, line.size()));
    }
    return strict;
}

static constexpr char number_out_of_range[] = "a number is out of range";

// The reason why parse_json discards a text. Where the text is not JSON, the library states it, with the
// column.
static std::string problem_of(std::string_view text) {
    try {
        parse_guarded(text, true);
        return "";
    } catch (const TooDeep&) {
        return fmt::format("nested more than {} levels deep", most_levels);
    } catch (const json::parse_error& error) {
        const std::string_view what = error.what(), found = "; last read";
        const size_t reason = what.rfind(": ", what.find(found));
        return fmt::format("not JSON at column {}: {}", error.byte,
                           printable(what.substr(reason + 2, what.find(found) - reason - 2)));
    } catch (const json::out_of_range&) { return number_out_of_range; }
}

ReadJson read_json(std::string_view line) {
    ReadJson read{.value = parse_json(line)};
    if (!read.value.is_discarded()) return read;
    read.value = parse_json(as_strict_json(line, read.replaced));
    if (read.value.is_discarded()) read.problem = problem_of(line);
    return read;
}

std::string replaced_halves(size_t count, const std::string& what) {
    return fmt::format(
        "halves of characters (lone surrogates, such as \\ud83d) in {} {}{} were replaced by "
        "U+FFFD",
        count, what, count == 1 ? "" : "s");
}

json read_json_object(const std::string& path) {
    const std::string text = FileReader(path).text();
    check_fetched(path, text);
    json value = parse_json(text);
    std::string problem = "is not a JSON object";
    if (value.is_discarded() && problem_of(text) == number_out_of_range) problem = number_out_of_range;
    else if (value.is_discarded() && read_json(text).value.is_object())
        problem = "has NaN, Infinity or half a character (a lone surrogate), which JSON does not have";
    CHECK(value.is_object(), "{}: {}", path, problem);
    return value;
}

std::string plain_text(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string shown(const json& value) {
    const std::string line = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return line.size() <= 120 ? line : line.substr(0, 120) + "...";
}
