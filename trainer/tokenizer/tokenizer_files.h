// tokenizer_files.h: tokenizers as the files that Hugging Face's tokenizers and transformers read and write.
//   tokenizer.json           a byte-level BPE: the vocabulary, the merges, and added tokens such as
//                            <|endoftext|> (byte: 256 tokens, each with its byte as its number, no merges)
//   vocab.json, merges.txt   vocabulary and merges, in a folder without a tokenizer.json
//   tokenizer_config.json, special_tokens_map.json, added_tokens.json   special_tokens.h
//   config.json, generation_config.json   of the model beside them: special_ids.h
// https://huggingface.co/docs/tokenizers; docs/formats.md has a table of every field.
// Texts become the tokens that transformers' AutoTokenizer makes of them, except that gpt2 itself reads
// "<|endoftext|>" as ordinary text.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/tokenizer/merge_training.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/word_splitter.h"

constexpr int gpt2_vocab_size = 50257;
constexpr char gpt2_end_of_text[] = "<|endoftext|>";

// The files of a tokenizer, for a model with a context of so many tokens. A tokenizer from a FILE keeps all
// files from which it was read; "none" has no files.
std::vector<TextFile> tokenizer_files(const Tokenizer& tokenizer, int context);

// The tokenizer in a folder, as make_tokenizer takes it: the path of its tokenizer.json, else of its
// vocab.json; "" if it has neither.
std::string tokenizer_in(const std::string& folder);

// Reads GPT-2's tokenizer from the files that OpenAI published: encoder.json ({token: number}, with bytes
// as printable characters) and vocab.bpe (a line "left right" for each merge, in order). name: gpt2 or
// gpt2-eot. Throws a UsageError that names the file if one is missing or holds something else.
std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::string& name, const std::string& encoder_path,
                                               const std::string& merges_path);

// The tokenizer.json and tokenizer_config.json of merges that were trained. special: numbered after the other
// tokens; the first one begins and ends texts.
std::pair<std::string, std::string> files_of_training(const TrainedMerges& trained, SplitPattern pattern,
                                                      const std::vector<std::string>& special);

// Reads a tokenizer.json, or a vocab.json with the merges.txt beside it, and the other files beside it. It
// must be a byte-level BPE whose texts are split by the patterns of word_splitter.h, perhaps after they are
// normalized to NFC; any other is a UsageError that names the file and what was expected. Files that say what
// gpt2 or byte is and nothing else give that tokenizer.
std::unique_ptr<Tokenizer> read_tokenizer_file(const std::string& path);
