// note.h: one-line messages for the user who started the program.
#pragma once
#include <functional>
#include <string>

// A function that prints one line. Functions that may report something take one as an argument; tests
// collect the lines.
using Note = std::function<void(const std::string&)>;
void note_on_stderr(const std::string& line);
