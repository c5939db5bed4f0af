// version.h: the version of flatgpt, "0.1.0", as set in CMakeLists.txt.
#pragma once
extern const char* const version;
