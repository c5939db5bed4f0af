// tokenizer_files.h: our tokenizers as the files that Hugging Face's tokenizers and transformers load.
//   tokenizer.json         a byte-level BPE: the vocabulary, the merges, and for gpt2 its special token <|endoftext|>
//                          (byte: the 256 bytes and no merges, so that a token's number is its byte)
//   tokenizer_config.json  which class of transformers opens it
// One thing differs from ours: Hugging Face reads "<|endoftext|>" in a text as the special token, ours as ordinary text.
#pragma once
#include <string>
#include <vector>

constexpr int gpt2_end_of_text = 50256;

// Writes the files of "gpt2" or "byte" into a folder that exists and returns their names. Each is whole or not there.
std::vector<std::string> write_tokenizer_files(const std::string& folder, const std::string& tokenizer, int context);

// The tokenizer, "gpt2" or "byte", whose files (tokenizer.json, or vocab.json) a folder holds; "" if it has none.
// UsageError if they belong to another tokenizer than these two.
std::string recognise_tokenizer(const std::string& folder);
