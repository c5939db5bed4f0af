// printable.h: text from files and names of files on its way to a terminal, which obeys control characters.
#pragma once
#include <string>
#include <string_view>

// The text with every control character (U+0000 to U+001F, U+007F to U+009F) written as \x1b, except those in
// `kept`;
// bytes that are not UTF-8 become U+FFFD.
std::string printable(std::string_view text, std::string_view kept = "");
