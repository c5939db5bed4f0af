// merge_training.h: the merges of a byte-pair encoding from the words of texts.
//   Sennrich, Haddow and Birch 2016, arXiv:1508.07909: the pair of neighbours that stands most often in all
//   words becomes a token, until there are enough tokens.
//   Ties and repeated tokens are those of Hugging Face's BpeTrainer, so that the merges are the same:
//   - of pairs that stand equally often, the one whose left token has the lower number comes first, then the
//     one whose right token has
//   - bytes are numbered as GPT-2 numbers them (byte_order), merged tokens in the order of the merges
//   - two pairs may spell one token; then both merges are listed, and the second adds no token
#pragma once
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/tokenizer/token.h"
#include "trainer/tokenizer/word_counts.h"

// The bytes by the numbers of their tokens: those that are printable in Latin-1 come first.
std::array<unsigned char, 256> byte_order();

struct TrainedMerges {
    std::vector<std::string> tokens;              // bytes of each; the first 256 are bytes
    std::vector<std::pair<Token, Token>> merges;  // in the order in which they are tried
};

// Up to `tokens` tokens, at least 256; fewer if the words have no more pairs. `made` is called with the
// number of tokens so far, and may throw to stop.
TrainedMerges train_merges(const WordCounts& words, size_t tokens, const std::function<void(size_t)>& made);
