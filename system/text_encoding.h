// text_encoding.h: texts that are UTF-16 or UTF-32, of which tokenizers would make noise: every second byte
// of an English one is zero.
#pragma once
#include <string>
#include <string_view>

// UsageError, with the command that converts the file, if the text begins with the byte-order mark of UTF-16
// or UTF-32, or if its first bytes hold zeros at even places only or at odd places only, as UTF-16 without a
// mark has them for Latin letters and spaces.
void check_encoding(const std::string& path, std::string_view text);
