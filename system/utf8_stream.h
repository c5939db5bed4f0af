// utf8_stream.h: bytes that arrive in pieces, such as tokens, shown without ever showing half a character.
//   A UTF-8 character is a lead byte and one to three continuation bytes (Unicode 15, table 3-7); tokens of
//   GPT-2 and of bytes may end within it.
#pragma once
#include <string>
#include <string_view>

// Hands out what it is given, byte for byte and in order, but keeps back the start of a character at the end
// until the rest has come, or until it can no longer become a character. At most three bytes are kept back.
class Utf8Stream {
public:
    // The bytes that can be shown now.
    std::string push(std::string_view bytes);
    // The start of a character that is kept back; "" mostly.
    const std::string& pending() const { return pending_; }

private:
    std::string pending_;
};

// Valid UTF-8: what is not is replaced by U+FFFD, once for every start of a character that is not completed
// (Unicode's "maximal subpart") and for every other byte, as Python's errors="replace" does. What Utf8Stream
// hands out may be replaced piece by piece: the whole comes out the same.
std::string replace_invalid_utf8(std::string_view bytes);
