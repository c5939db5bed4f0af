// note.h: a message in one line for the person who started the program.
#pragma once
#include <functional>
#include <string>

// Prints one line. A function that may have something to say takes one, and tests collect the lines.
using Note = std::function<void(const std::string&)>;
void note_on_stderr(const std::string& line);
