#include "system/file_access.h"

#include <fmt/format.h>

namespace fs = std::filesystem;

static fs::file_type type_of(const std::string& path) {
    std::error_code failure;
    const fs::file_type type = fs::status(path, failure).type();  // not_found only if the system reports that
    if (type == fs::file_type::none)
        throw AccessError(fmt::format("{}: cannot be accessed: {}", path, failure.message()));
    return type;
}

bool is_there(const std::string& path) { return type_of(path) != fs::file_type::not_found; }

bool is_folder(const std::string& path) { return type_of(path) == fs::file_type::directory; }

std::vector<fs::path> entries_of(const std::string& folder) {
    std::vector<fs::path> entries;
    if (!is_folder(folder)) return entries;
    std::error_code failure;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure))
        entries.push_back(entry->path());
    if (failure) throw AccessError(fmt::format("{}: cannot be listed: {}", folder, failure.message()));
    return entries;
}
