// version.h: which flatgpt this is, as CMakeLists.txt says it: "0.1.0".
#pragma once
extern const char* const version;
