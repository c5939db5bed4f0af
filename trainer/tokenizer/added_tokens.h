// added_tokens.h: tokens that are found in a text before it is split into words, such as <|endoftext|> or a
//   word of the user's own. They are found as Hugging Face's tokenizers finds them (added_vocabulary.rs):
//   - those that are not `normalized` first, in the whole text; then the others, in the pieces between
//   - from left to right; of several that begin at one place the longest
//   - with `single_word`, only where no word character stands beside it (a refused place is passed over)
//   - `lstrip` and `rstrip` take the white space before and after it away
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

struct AddedToken {
    std::string content;
    int id = -1;
    bool special = false, single_word = false, lstrip = false, rstrip = false, normalized = false;
    bool passed_over = false;  // found, but left in the text (split_special_tokens)

    bool operator==(const AddedToken&) const = default;
};

class AddedTokens {
public:
    AddedTokens() = default;
    // The contents must differ from each other.
    // normalize, if not null, is applied to the text between the tokens that are not `normalized`, and to the
    // contents of the others.
    using Normalize = std::string (*)(std::string_view text);
    explicit AddedTokens(const std::vector<AddedToken>& tokens, Normalize normalize = nullptr);

    bool empty() const { return whole_.empty() && in_pieces_.empty(); }
    // Calls consume(piece, token) in order: for an added token, and for the text between two, where token is
    // null. A piece of text is not empty.
    using Consume = std::function<void(std::string_view piece, const AddedToken* token)>;
    void split(std::string_view text, const Consume& consume) const;
    size_t longest() const { return std::max(whole_.longest(), in_pieces_.longest()); }  // in bytes
    // True if no added token crosses or touches the position, so that the tokens on either side are found
    // without the other. The character before it must not be white space, and after it the text must have
    // longest() bytes or be at its end.
    bool can_cut(std::string_view text, size_t at) const;

private:
    // Tokens that are looked for together.
    class Set {
    public:
        Set() = default;
        explicit Set(std::vector<AddedToken> tokens);
        bool empty() const { return tokens_.empty(); }
        size_t longest() const { return longest_; }
        void split(std::string_view text, const Consume& consume) const;
        bool can_cut(std::string_view text, size_t at) const;

    private:
        const AddedToken* longest_at(std::string_view text, size_t at) const;

        std::vector<AddedToken> tokens_;      // sorted by their bytes
        std::array<size_t, 257> first_ = {};  // first_[b]: the first token that begins with byte b or more
        size_t longest_ = 0;                  // bytes
    };
    Set whole_, in_pieces_;
    Normalize normalize_ = nullptr;
};
