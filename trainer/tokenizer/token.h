// token.h: the number of a token, and how large a vocabulary may be.
#pragma once
#include <cstdint>

using Token = uint32_t;

// The numbers of tokens are below this. It keeps a damaged file from asking for all of the memory.
inline constexpr int max_vocab_size = 1 << 22;
// Larger vocabularies need 32 bits a token in shards.
inline constexpr int max_vocab_of_16_bits = 1 << 16;
