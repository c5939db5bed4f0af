// printable.h: what messages show: text and file names safe to print on a terminal, which would obey
// control characters, or to copy into a command, and numbers of bytes
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

// The text with each control character (U+0000 to U+001F, U+007F to U+009F) written as \x1b is, except
// those in `kept`. Bytes that are not UTF-8 become U+FFFD.
std::string printable(std::string_view text, std::string_view kept = "");

// A file's name as one word of a shell's command.
std::string in_shell(std::string_view name);

// A number of bytes, such as "2048.0 MiB" and "16.1 GiB".
std::string readable(double bytes);
inline std::string readable(size_t bytes) { return readable(static_cast<double>(bytes)); }
