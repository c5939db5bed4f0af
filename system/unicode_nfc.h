// unicode_nfc.h: Unicode's normal form C (UAX #15), in which a letter with its accents is one character
//   where Unicode has one. Computed by utf8proc where the build found it; the build picks one of
//   unicode_nfc_utf8proc.cpp and unicode_nfc_none.cpp.
#pragma once
#include <string>
#include <string_view>

// False in a build without utf8proc.
bool can_normalize();

// The text in normal form C. Bytes that are not UTF-8 stay, and the text on either side of them is
// normalized by itself. can_normalize() must be true.
std::string normalized_nfc(std::string_view text);
