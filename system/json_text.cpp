#include "system/json_text.h"

#include "system/error.h"
#include "system/mapped_file.h"

using nlohmann::json;

static constexpr int most_levels = 64;

json parse_json(std::string_view text) {
    struct TooDeep {};
    const auto refuse_depth = [](int depth, json::parse_event_t event, json&) {
        const bool opens =
            event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
        if (opens && depth >= most_levels) throw TooDeep();
        return true;
    };
    try {
        return json::parse(text, refuse_depth, false);
    } catch (const TooDeep&) { return json(json::value_t::discarded); }
}

json read_json_object(const std::string& path) {
    json value = parse_json(MappedFile(path).text());
    CHECK(value.is_object(), "{}: is not a JSON object", path);
    return value;
}

std::string shown(const json& value) {
    const std::string line = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return line.size() <= 120 ? line : line.substr(0, 120) + "...";
}
