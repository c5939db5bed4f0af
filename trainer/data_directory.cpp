#include "data_directory.h"

#include <cstdlib>

std::string data_directory() {
    const char* chosen = std::getenv("FLATGPT_DATA");
    return chosen != nullptr && *chosen != '\0' ? chosen : PROJECT_ROOT "/data";
}
