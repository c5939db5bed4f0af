// tokenizer.h: text to tokens and back.
//   gpt2      GPT-2's byte-level byte-pair encoding: 50,257 tokens, 50256 ends a text
//   gpt2-eot  the same, but "<|endoftext|>" in a text is token 50256
//   byte      a token is a byte: 256 tokens, none ends a text
//   FILE      a byte-level BPE as Hugging Face saves it: a tokenizer.json, or a vocab.json with its
//             merges.txt, or their folder (tokenizer_files.h)
//   none      no text can be encoded: only token shards can be read, and a token is shown as its number
// Every byte sequence, valid UTF-8 or not, decodes back to itself, except for white space that added tokens
// of a FILE take away, and for a space that some FILEs put before a text. With gpt2, text never encodes to
// end-of-text: "<|endoftext|>" is ordinary text, as in tiktoken's encode_ordinary, and is counted.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/tokenizer/special_ids.h"
#include "trainer/tokenizer/token.h"

struct TextFile {
    std::string name, text;
};

// Not thread-safe: encoding uses scratch memory and a cache of the object.
class Tokenizer {
public:
    virtual ~Tokenizer() = default;

    // "gpt2", "gpt2-eot", "byte", "none", or "bpe-" and a checksum. Tokenizers with the same name encode
    // every text to the same tokens.
    virtual std::string_view name() const = 0;
    // The name of this tokenizer before added tokens were found in texts.
    virtual std::string_view former_name() const { return name(); }
    // Greater than every token; some numbers below it may have no token.
    virtual int vocab_size() const = 0;
    // The token between two texts.
    virtual std::optional<int> end_of_text() const = 0;
    // The token before a text: bos_token of the tokenizer's files, and <|endoftext|> of gpt2.
    virtual std::optional<int> begin_of_text() const { return own_ids().begin; }
    // The vocabulary that a model needs at least: the tokens of ordinary text, without added tokens.
    virtual int least_vocabulary() const { return vocab_size(); }
    // The statements of the tokenizer's own files. The model's files come before them: special_ids.h.
    virtual SpecialIds own_ids() const;
    // The bytes of token id, valid as long as the tokenizer exists. UsageError if id is not in the
    // vocabulary.
    virtual std::string_view token_bytes(int id) const = 0;
    // True for a token that stands for no text, such as <|endoftext|>.
    virtual bool is_special(int) const { return false; }
    // Pairs of tokens that become one token, in the order in which they are tried.
    virtual std::vector<std::pair<int, int>> merges() const { return {}; }
    // The files from which the tokenizer was read, for copies in a model's folder; empty for the tokenizers
    // that ship with the project.
    virtual std::span<const TextFile> files() const { return {}; }

    // Sets the model whose texts are encoded: what its files say about special tokens, and its vocabulary.
    // From then on, an added token that the model does not have is a UsageError in encode.
    void set_model(const ModelIds& ids, int V);
    const ModelIds& model_ids() const { return model_ids_; }
    // The tokens that end a generated text: those of the model's files, else the tokenizer's.
    std::vector<int> ends() const;
    bool ends_text(int token) const;
    // The token from which a text without a prompt is generated: end_of_text(), else that of a line break in
    // byte; 0 if the model does not have it.
    int first_token() const;

    std::vector<Token> encode(std::string_view text);
    // encode(text) with the tokens that the tokenizer's post-processor puts around a single text.
    virtual std::vector<Token> encode_prompt(std::string_view text) { return encode(text); }
    std::string decode(std::span<const Token> tokens) const;

    // Passes the tokens of encode(whole text) to consume in order, a piece at a time, for texts larger than
    // memory. more(text) appends the next piece to the bytes that wait for the end of a word, and returns
    // false if it was the last one.
    void encode_in_pieces(const std::function<bool(std::string& text)>& more,
                          const std::function<void(std::span<const Token>)>& consume);
    // How often the texts encoded so far contain "<|endoftext|>" that gpt2 read as ordinary text.
    virtual size_t unread_ends() const { return 0; }

protected:
    // Appends the tokens of text. begins: it is not the rest of a text that was cut.
    virtual void append_tokens(std::vector<Token>& tokens, std::string_view text, bool begins) = 0;
    // The last position where a text that begins so, and goes on, can be cut without a change of its tokens;
    // 0 if there is none. `seen`: there was none in the first so many bytes.
    virtual size_t last_cut(std::string_view text, size_t seen) const = 0;
    int model_vocabulary() const { return model_vocabulary_; }

private:
    ModelIds model_ids_;
    int model_vocabulary_ = max_vocab_size;
};

// A line about texts that contain "<|endoftext|>" as ordinary text so many times; "" if they do not.
std::string note_of_unread_ends(size_t count);

// Makes the tokenizer that one of the words above or a FILE names. UsageError for a name that is neither,
// and for files that are missing, damaged, or of another kind. gpt2 is read from gpt2_encoder.json and
// gpt2_vocab.bpe in directory, by default data_directory(). A FILE that describes gpt2 or byte and nothing
// else gives gpt2 or byte.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name, const std::string& directory);

// The same for a model with a vocabulary of V. model: its folder or file, or a name for errors; what its
// folder says about special tokens holds if the tokenizer's says nothing. UsageError if the tokenizer does
// not fit V. V may be the number of tokens padded to a multiple of 128; with byte it may be less than 256.
// With another FILE it may lack added tokens, or be any larger number that the config.json beside it has.
std::unique_ptr<Tokenizer> make_tokenizer_for(const std::string& model, int V, const std::string& name);

// The words that name a tokenizer; anything else is a FILE.
inline const std::vector<std::string> tokenizer_words = {"gpt2", "gpt2-eot", "byte", "none"};
bool is_tokenizer_word(const std::string& name);
// The tokenizer for a vocabulary of V if nothing else is known about it.
std::string default_tokenizer(int V);
