#include "trainer/formats/config_fields.h"

#include <cmath>
#include <utility>

#include "system/error.h"
#include "system/json_text.h"

using nlohmann::json;

ConfigFields::ConfigFields(const std::string& path) : path_(path), fields_(read_json_object(path)) {}

int ConfigFields::size(const char* name, const char* alias, int most) const {
    auto field = fields_.find(name);
    if (const auto other = fields_.find(alias); other != fields_.end()) {
        CHECK(field == fields_.end() || *field == *other,
              "{}: {} is {}, but {} is {}; expected the same number, or one of them", path_, name,
              shown(*field), alias, shown(*other));
        field = other;
        name = alias;
    }
    CHECK(field != fields_.end(), "{}: has no {}; expected the config.json of a {}", path_, name, title_);
    CHECK(field->is_number_unsigned() && field->get<uint64_t>() >= 1 &&
              field->get<uint64_t>() <= static_cast<uint64_t>(most),
          "{}: {} is {}; expected a whole number from 1 to {}", path_, name, shown(*field), most);
    return field->get<int>();
}

int ConfigFields::size_or(const char* name, int most, int otherwise) const {
    return fields_.value(name, json()).is_null() ? otherwise : size(name, most);
}

double ConfigFields::positive_or(const char* name, double otherwise) const {
    const auto field = fields_.find(name);
    if (field == fields_.end()) return otherwise;
    CHECK(field->is_number() && field->get<double>() > 0, "{}: {}{} is {}; expected a positive number", path_,
          parent_, name, shown(*field));
    return field->get<double>();
}

bool ConfigFields::flag_or(const char* name, bool otherwise) const {
    const auto field = fields_.find(name);
    if (field == fields_.end()) return otherwise;
    CHECK(field->is_boolean(), "{}: {}{} is {}; expected true or false", path_, parent_, name, shown(*field));
    return field->get<bool>();
}

ConfigFields::ConfigFields(std::string path, std::string title, std::string parent, json fields)
    : path_(std::move(path)),
      title_(std::move(title)),
      parent_(std::move(parent)),
      fields_(std::move(fields)) {}

ConfigFields ConfigFields::inside(const char* name) const {
    const json value = fields_.value(name, json());
    CHECK(value.is_null() || value.is_object(), "{}: {} is {}; expected fields in braces, or null", path_,
          name, shown(value));
    return {path_, title_, std::string(name) + ".", value.is_null() ? json::object() : value};
}

void ConfigFields::check(const char* name, const std::vector<json>& accepted) const {
    const auto field = fields_.find(name);
    if (field == fields_.end()) return;
    std::string expected;
    for (const json& value : accepted) {
        if (*field == value) return;
        expected += (expected.empty() ? "" : " or ") + shown(value);
    }
    refuse(name, expected);
}

void ConfigFields::check_number(const char* name, double accepted) const {
    const auto field = fields_.find(name);
    if (field == fields_.end()) return;
    if (!field->is_number() || !(std::abs(field->get<double>() - accepted) < 1e-4 * accepted))
        refuse(name, fmt::format("{}", accepted));
}

void ConfigFields::refuse(const char* name, const std::string& expected) const {
    throw UsageError(fmt::format("{}: {}{} is {}, which is not the {} of this program; expected {}", path_,
                                 parent_, name, shown(fields_.at(name)), title_, expected));
}
