#include "system/data_directory.h"

#include <cstdlib>
#include <filesystem>

#include "system/error.h"

namespace fs = std::filesystem;

static bool is_data_directory(const fs::path& folder) {
    std::error_code unknown;
    return fs::exists(folder / "gpt2_vocab.bpe", unknown);
}

std::string data_directory() {
    const char* chosen = std::getenv("FLATGPT_DATA");
    if (chosen != nullptr && *chosen != '\0') return chosen;
    std::error_code unknown;
    const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
    for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
        for (const char* data : {"data", "share/flatgpt/data"}) {  // in a checkout; after make install
            if (is_data_directory(folder / data)) return folder / data;
        }
    }
    CHECK(is_data_directory(PROJECT_ROOT "/data"),
          "the project's folder data/ is neither above the program {} nor in {}; expected it there, or its "
          "path in FLATGPT_DATA",
          program.string(), PROJECT_ROOT);
    return PROJECT_ROOT "/data";
}
