// text_encoding.h: detects UTF-16 and UTF-32 texts, which tokenizers would turn into noise: in English,
// every second byte of UTF-16 is zero.
#pragma once
#include <string>
#include <string_view>

// UsageError, with the command that converts the file, if the text begins with the byte-order mark of
// UTF-16 or UTF-32, or if its first bytes have zeros only at even or only at odd places, as Latin letters
// and spaces have in UTF-16 without a mark.
void check_encoding(const std::string& path, std::string_view text);
