// profile_table.h: formats a report of profile.h as a table for the terminal.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

std::string profile_table(const nlohmann::ordered_json& report);
