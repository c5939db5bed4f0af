// data_directory.h: where the data files of the project are (vocabularies, texts), from any working
// directory.
#pragma once
#include <string>

// $FLATGPT_DATA if it is set. Otherwise data/ or share/flatgpt/data beside the program or in the nearest
// folder above it, which finds the checkout or installation even after a move or copy. Otherwise data/ in
// the source tree from which the program was built (compile definition PROJECT_ROOT), for a build folder
// elsewhere. UsageError if no place holds GPT-2's vocabulary.
std::string data_directory();
