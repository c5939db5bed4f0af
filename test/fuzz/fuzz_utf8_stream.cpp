// Bytes in pieces on their way to a terminal: all of them arrive in order, and the output is valid UTF-8
// and the same as for one piece.
#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "system/utf8_stream.h"

// throws for what is not UTF-8
static void require_valid(const std::string& text) { nlohmann::json(text).dump(); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const size_t piece_bytes = data[0] % 7 + 1;
    const std::string_view text = as_text(data + 1, size - 1);
    Utf8Stream stream;
    std::string handed_out, shown;
    for (size_t at = 0; at < text.size(); at += piece_bytes) {
        const std::string piece = stream.push(text.substr(at, piece_bytes));
        handed_out += piece;
        shown += replace_invalid_utf8(piece);
        require_valid(shown);
        require(stream.pending().size() <= 3 &&
                handed_out + stream.pending() == text.substr(0, at + piece_bytes));
    }
    shown += replace_invalid_utf8(stream.pending());
    require_valid(shown);
    require(shown == replace_invalid_utf8(text));
    return 0;
}
