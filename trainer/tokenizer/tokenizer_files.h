// tokenizer_files.h: tokenizers as the files that Hugging Face's tokenizers and transformers read and write.
//   tokenizer.json         a byte-level BPE: the vocabulary, the merges, and special tokens such as
//                          <|endoftext|>
//                          (byte: the 256 bytes and no merges, so that a token's number is its byte)
//   tokenizer_config.json  which class of transformers opens it, and eos_token, which ends a text
// https://huggingface.co/docs/tokenizers
// One thing differs from ours: Hugging Face reads "<|endoftext|>" in a text as the special token, ours as
// ordinary text.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

constexpr int gpt2_vocab_size = 50257;

// The files of a tokenizer for a model with a context of so many tokens. None for the tokenizer "none". Those
// of a tokenizer from a FILE are the files it was read from.
std::vector<TextFile> tokenizer_files(const Tokenizer& tokenizer, int context);

// The tokenizer whose files (tokenizer.json, or vocab.json) a folder holds: "gpt2", "byte", or the path of
// its tokenizer.json; "" if it has none. UsageError for a tokenizer.json that is damaged, and for a
// vocab.json of another vocabulary than GPT-2's or the bytes'.
std::string recognise_tokenizer(const std::string& folder);
// The same of a tokenizer.json: "gpt2", "byte", or "" for a tokenizer of its own.
std::string recognise_tokenizer_json(const std::string& path);

// GPT-2's, from the files that OpenAI published: encoder.json ({token: number}, bytes written as printable
// characters) and vocab.bpe ("left right" a line, in the order of the merges). UsageError, naming the file,
// if one is missing or is not that.
std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::string& encoder_path,
                                               const std::string& merges_path);

// A byte-level BPE: split into words as GPT-2 does, after digits if it says so; without normalizer. What a
// post-processor would put around a text is not added. A text is ended by the eos_token of a
// tokenizer_config.json beside it, else by <|endoftext|> or </s> if it has one. UsageError, naming the file
// and what was expected, for any other tokenizer.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path);
