// tokenizer.h: text to tokens and back.
//   gpt2  GPT-2's byte-level byte-pair encoding: 50,257 tokens, 50256 ends a text
//   byte  a token is a byte: 256 tokens, none ends a text
//   FILE  a tokenizer.json that Hugging Face's tokenizers wrote, of a byte-level BPE (tokenizer_files.h), or
//   the folder that holds it
//   none  tokens of no text: only token shards can be read, and a token is shown as its number
// Every byte sequence, valid UTF-8 or not, decodes back to itself (after a space that some FILEs put before a
// text), and text never encodes to end-of-text ("<|endoftext|>" in a text is ordinary text, as in tiktoken's
// encode_ordinary).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

inline constexpr int max_vocab_size = 65536;  // tokens have 16 bits

struct TextFile {
    std::string name, text;
};

// Encoding keeps scratch memory and a cache: an object serves one thread at a time.
class Tokenizer {
public:
    virtual ~Tokenizer() = default;

    // "gpt2", "byte", "none", or "bpe-" and a checksum: two tokenizers of one name make the same tokens of
    // every text.
    virtual std::string_view name() const = 0;
    // Greater than every token. Not every number below it need be a token's.
    virtual int vocab_size() const = 0;
    virtual std::optional<int> end_of_text() const = 0;
    // The bytes that token id stands for, valid as long as the tokenizer. UsageError if id is not in the
    // vocabulary.
    virtual std::string_view token_bytes(int id) const = 0;
    // The files from which a tokenizer was read, to be copied into a model's folder; empty for the tokenizers
    // that ship with the project.
    virtual std::span<const TextFile> files() const { return {}; }

    std::vector<uint16_t> encode(std::string_view text);
    std::string decode(std::span<const uint16_t> tokens) const;

    // The same tokens as encode(text), handed over in order for about piece_bytes of text at a time: for
    // texts larger than memory.
    void encode_in_pieces(std::string_view text, size_t piece_bytes,
                          const std::function<void(std::span<const uint16_t>)>& consume);

protected:
    // Appends the tokens of text.
    virtual void append_tokens(std::vector<uint16_t>& tokens, std::string_view text) = 0;
    // The first place at or after `from` (> 0) where text can be cut in two that encode to the same tokens;
    // text.size() if there is none.
    virtual size_t safe_cut(std::string_view text, size_t from) const = 0;
};

// A tokenizer by the words above. UsageError for another word that is no file's name either, and for
// vocabulary files that are missing, damaged, or of another kind. gpt2 reads gpt2_encoder.json and
// gpt2_vocab.bpe in directory, by default data_directory(). A FILE that describes gpt2 or byte is that.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& directory);

// The same for a model with a vocabulary of V, which the message calls `model`. UsageError if the tokenizer
// has other tokens than the model: a model may have gpt2's 50,257 padded to a multiple of 128, and need not
// know every byte.
std::unique_ptr<Tokenizer> make_tokenizer_for(const std::string& model, int V, const std::string& name);

// The words that name a tokenizer; anything else is a FILE.
inline const std::vector<std::string> tokenizer_words = {"gpt2", "byte", "none"};
bool is_tokenizer_word(const std::string& name);
// The tokenizer of a vocabulary of V of which nothing else is known.
std::string default_tokenizer(int V);
