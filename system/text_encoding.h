// text_encoding.h: what a file's bytes say of its encoding. UTF-16 and UTF-32 would become noise as tokens:
// in English, every second byte of UTF-16 is zero.
#pragma once
#include <string>
#include <string_view>

// UsageError, with the command that converts the file, if the text begins with the byte-order mark of
// UTF-16 or UTF-32, or if its first bytes have zeros only at even or only at odd places, as Latin letters
// and spaces have in UTF-16 without a mark.
void check_encoding(const std::string& path, std::string_view text);

// UsageError, with the command that fetches the file, if it is the pointer that git clone leaves in its place
// where git LFS is not installed.
void check_fetched(const std::string& path, std::string_view bytes);

// UTF-8's byte order mark, which editors on Windows put before a text.
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
