// data_directory.h: where the files that ship with the project lie (vocabularies, texts), from any working directory.
#pragma once
#include <string>

// $FLATGPT_DATA if it is set, else the source tree's data/ (compile definition PROJECT_ROOT).
std::string data_directory();
