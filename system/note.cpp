#include "system/note.h"

#include <cstdio>

#include "system/print_line.h"
#include "system/printable.h"

void note_on_stderr(const std::string& line) { print_line(stderr, printable(line)); }
