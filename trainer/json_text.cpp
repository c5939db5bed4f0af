#include "json_text.h"

using nlohmann::json;

static constexpr int most_levels = 64;

json parse_json(std::string_view text) {
    struct TooDeep {};
    const auto refuse_depth = [](int depth, json::parse_event_t event, json&) {
        const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
        if (opens && depth >= most_levels) throw TooDeep();
        return true;
    };
    try {
        return json::parse(text, refuse_depth, false);
    } catch (const TooDeep&) { return json(json::value_t::discarded); }
}
