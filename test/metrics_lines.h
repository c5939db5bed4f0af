// metrics_lines.h: the lines of a run's metrics.jsonl, for the tests of programs that write one.
#pragma once
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "temporary_folder.h"

// All of them, or those of one kind. A torn line is an exception, which fails the test.
inline std::vector<nlohmann::json> metrics_of(const std::string& run, const std::string& kind = "") {
    std::vector<nlohmann::json> lines;
    std::istringstream in(read_file(run + "/metrics.jsonl"));
    for (std::string text; std::getline(in, text);) {
        nlohmann::json line = nlohmann::json::parse(text);
        if (kind.empty() || line.at("kind") == kind) lines.push_back(std::move(line));
    }
    return lines;
}
