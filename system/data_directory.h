// data_directory.h: where the files that ship with the project lie (vocabularies, texts), from any working
// directory.
#pragma once
#include <string>

// $FLATGPT_DATA if it is set; else data/ beside the program or in the nearest folder above it, which is the
// checkout that the program was built in, wherever it was moved or copied to; else, for a build folder
// elsewhere, data/ in the source tree that it was built from (compile definition PROJECT_ROOT). UsageError if
// none of them holds GPT-2's vocabulary.
std::string data_directory();
