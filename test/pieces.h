// pieces.h: texts that a tokenizer reads in pieces
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

// The text by so many bytes at a time, or by single ones, as Tokenizer::encode_in_pieces takes it.
inline auto pieces_of(std::string_view text, size_t bytes) {
    return [text, bytes = std::max<size_t>(1, bytes)](std::string& to) mutable {
        to += text.substr(0, bytes);
        text.remove_prefix(std::min(bytes, text.size()));
        return !text.empty();
    };
}

inline std::vector<Token> encode_in_pieces(Tokenizer& tokenizer, std::string_view text, size_t bytes) {
    std::vector<Token> tokens;
    tokenizer.encode_in_pieces(pieces_of(text, bytes), [&](std::span<const Token> piece) {
        tokens.insert(tokens.end(), piece.begin(), piece.end());
    });
    return tokens;
}
