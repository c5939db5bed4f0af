// Text for the tokenizers: any bytes decode back to themselves, whole or in pieces, and text never encodes to
// the end of a text.
#include <algorithm>

#include "fuzz.h"
#include "test/pieces.h"

static void round_trip(Tokenizer& tokenizer, std::string_view text, size_t piece_bytes) {
    const std::vector<Token> tokens = tokenizer.encode(text);
    require(tokenizer.decode(tokens) == text);
    require(!tokenizer.end_of_text() ||
            std::find(tokens.begin(), tokens.end(), *tokenizer.end_of_text()) == tokens.end());
    require(encode_in_pieces(tokenizer, text, piece_bytes) == tokens);
}

static std::unique_ptr<Tokenizer> gpt2, byte;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    gpt2 = make_tokenizer("gpt2");
    byte = make_tokenizer("byte");
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text = as_text(data, size);
    const size_t piece_bytes = size % 7 + 1;
    round_trip(*gpt2, text, piece_bytes);
    round_trip(*byte, text, piece_bytes);
    return 0;
}
