// tokenizer_files.h: tokenizers as the files that Hugging Face's tokenizers and transformers read and write.
//   tokenizer.json         a byte-level BPE: the vocabulary, the merges, and special tokens such as
//                          <|endoftext|> (byte: 256 tokens, each with its byte as its number, no merges)
//   tokenizer_config.json  the class of transformers that opens it, and eos_token, which ends a text
// https://huggingface.co/docs/tokenizers
// One thing differs: "<|endoftext|>" in a text is the special token for Hugging Face, and ordinary text here.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

constexpr int gpt2_vocab_size = 50257;

// The files of a tokenizer, for a model with a context of so many tokens. A tokenizer from a FILE keeps
// the files from which it was read; "none" has no files.
std::vector<TextFile> tokenizer_files(const Tokenizer& tokenizer, int context);

// The tokenizer in a folder, as make_tokenizer takes it: the path of its tokenizer.json; "gpt2" or "byte"
// if it has only a vocab.json, with that vocabulary; "" if it has neither. UsageError for any other
// vocab.json.
std::string tokenizer_in(const std::string& folder);

// Reads GPT-2's tokenizer from the files that OpenAI published: encoder.json ({token: number}, with bytes
// as printable characters) and vocab.bpe (a line "left right" for each merge, in order). Throws a
// UsageError that names the file if one is missing or holds something else.
std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::string& encoder_path,
                                               const std::string& merges_path);

// Reads a tokenizer.json. It must be a byte-level BPE without normalizer that splits text into words as
// GPT-2 does, perhaps after it separates digits; any other is a UsageError that names the file and what
// was expected. The tokens that a post-processor would add around a text are left out. A text ends with
// the eos_token of a tokenizer_config.json beside the file, else with <|endoftext|> or </s> if the
// tokenizer has one. A file with the tokens, merges and splitting of gpt2 or byte gives that tokenizer.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::string& path);
