// tokenizer.h: text to tokens and back.
//   gpt2  GPT-2's byte-level byte-pair encoding: 50,257 tokens, 50256 ends a text
//   byte  a token is a byte: 256 tokens, none ends a text
//   FILE  a tokenizer.json of Hugging Face with a byte-level BPE (tokenizer_files.h), or its folder
//   none  no text can be encoded: only token shards can be read, and a token is shown as its number
// Every byte sequence, valid UTF-8 or not, decodes back to itself, after a space that some FILEs add at the
// start. Text never encodes to end-of-text: "<|endoftext|>" in a text is ordinary text, as in tiktoken's
// encode_ordinary.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

inline constexpr int max_vocab_size = 65536;  // tokens have 16 bits

struct TextFile {
    std::string name, text;
};

// Not thread-safe: encoding uses scratch memory and a cache of the object.
class Tokenizer {
public:
    virtual ~Tokenizer() = default;

    // "gpt2", "byte", "none", or "bpe-" and a checksum. Tokenizers with the same name encode every text to
    // the same tokens.
    virtual std::string_view name() const = 0;
    // Greater than every token; some numbers below it may have no token.
    virtual int vocab_size() const = 0;
    virtual std::optional<int> end_of_text() const = 0;
    // The bytes of token id, valid as long as the tokenizer exists. UsageError if id is not in the
    // vocabulary.
    virtual std::string_view token_bytes(int id) const = 0;
    // Pairs of tokens that become one token, in the order in which they are tried.
    virtual std::vector<std::pair<int, int>> merges() const { return {}; }
    // The files from which the tokenizer was read, for copies in a model's folder; empty for the tokenizers
    // that ship with the project.
    virtual std::span<const TextFile> files() const { return {}; }

    std::vector<uint16_t> encode(std::string_view text);
    std::string decode(std::span<const uint16_t> tokens) const;

    // Passes the tokens of encode(text) to consume in order, those of about piece_bytes of text at a time,
    // for texts larger than memory.
    void encode_in_pieces(std::string_view text, size_t piece_bytes,
                          const std::function<void(std::span<const uint16_t>)>& consume);

protected:
    // Appends the tokens of text.
    virtual void append_tokens(std::vector<uint16_t>& tokens, std::string_view text) = 0;
    // The first position at or after `from` (> 0) where text can be cut without a change of its tokens;
    // text.size() if there is none.
    virtual size_t safe_cut(std::string_view text, size_t from) const = 0;
};

// Makes the tokenizer that one of the words above or a FILE names. UsageError for a name that is neither,
// and for files that are missing, damaged, or of another kind. gpt2 is read from gpt2_encoder.json and
// gpt2_vocab.bpe in directory, by default data_directory(). A FILE that describes gpt2 or byte gives gpt2
// or byte.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& directory);

// The same for a model with a vocabulary of V, which errors call `model`. UsageError if the tokenizer does
// not fit V: V may be the number of tokens padded to a multiple of 128, and may be less than 256 for byte.
std::unique_ptr<Tokenizer> make_tokenizer_for(const std::string& model, int V, const std::string& name);

// The words that name a tokenizer; anything else is a FILE.
inline const std::vector<std::string> tokenizer_words = {"gpt2", "byte", "none"};
bool is_tokenizer_word(const std::string& name);
// The tokenizer for a vocabulary of V if nothing else is known about it.
std::string default_tokenizer(int V);
