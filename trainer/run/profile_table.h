// profile_table.h: a report of profile.h as lines for a person.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

std::string profile_table(const nlohmann::ordered_json& report);
