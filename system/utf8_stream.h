// utf8_stream.h: shows text that arrives in pieces, such as tokens, without splitting a character.
//   A UTF-8 character is a lead byte and up to three continuation bytes (Unicode 15, table 3-7). Tokens
//   of GPT-2 and single bytes may end inside one.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

// Returns its input byte for byte and in order, but holds back the start of a character at the end until
// the rest has arrived, or until it can no longer become a character. At most three bytes are held back.
class Utf8Stream {
public:
    // Appends bytes and returns those that can be shown now.
    std::string push(std::string_view bytes);
    // The start of a character that is held back; usually "".
    const std::string& pending() const { return pending_; }

private:
    std::string pending_;
};

// Valid UTF-8: U+FFFD replaces each start of a character that is not completed (Unicode's "maximal
// subpart") and each other invalid byte, as in Python's errors="replace". Applied piece by piece to the
// output of Utf8Stream, it gives the same result as applied to the whole.
std::string replace_invalid_utf8(std::string_view bytes);

// Position of the first byte that is not part of a valid character; bytes.size() if all are.
size_t first_invalid_utf8(std::string_view bytes);
