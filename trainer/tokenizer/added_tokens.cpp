#include "trainer/tokenizer/added_tokens.h"

#include <utility>

#include "trainer/tokenizer/characters.h"

namespace {

unsigned char byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

bool is_alone(std::string_view text, size_t begin, size_t end) {
    return !ends_with_word_character(text.substr(0, begin)) && !begins_with_word_character(text.substr(end));
}

}  // namespace

AddedTokens::Set::Set(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
    for (const AddedToken& token : tokens_) {
        longest_ = std::max(longest_, token.content.size());
        for (size_t byte = byte_at(token.content, 0) + size_t{1}; byte < first_.size(); byte++)
            first_[byte]++;
    }
}

// The tokens that begin with the bytes read so far are a range of the sorted list, and the shortest of them
// comes first.
const AddedToken* AddedTokens::Set::longest_at(std::string_view text, size_t at) const {
    auto low = tokens_.begin() + static_cast<std::ptrdiff_t>(first_[byte_at(text, at)]),
         high = tokens_.begin() + static_cast<std::ptrdiff_t>(first_[byte_at(text, at) + size_t{1}]);
    const AddedToken* longest = nullptr;
    for (size_t depth = 1; low < high; depth++) {
        if (low->content.size() == depth) longest = &*low++;
        if (at + depth == text.size()) break;
        const unsigned char next = byte_at(text, at + depth);
        const auto byte = [&](const AddedToken& token) { return byte_at(token.content, depth); };
        low = std::partition_point(low, high, [&](const AddedToken& token) { return byte(token) < next; });
        high = std::partition_point(low, high, [&](const AddedToken& token) { return byte(token) == next; });
    }
    return longest;
}

void AddedTokens::Set::split(std::string_view text, const Consume& consume) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t byte = byte_at(text, at);
        const AddedToken* const token = first_[byte] == first_[byte + 1] ? nullptr : longest_at(text, at);
        if (!token) {
            at++;
            continue;
        }
        size_t begin = std::exchange(at, at + token->content.size()), end = at;
        if (token->passed_over || (token->single_word && !is_alone(text, begin, end))) continue;
        if (token->lstrip) begin = std::max(white_space_before(text, begin), done);
        if (token->rstrip) end = white_space_after(text, end);
        if (begin >= end) continue;  // its white space was taken away by the token before
        if (done < begin) consume(text.substr(done, begin - done), nullptr);
        consume(token->content, token);
        done = end;  // a token of spaces may end before the end of those that another one took away
    }
    if (done < text.size()) consume(text.substr(done), nullptr);
}

bool AddedTokens::Set::can_cut(std::string_view text, size_t at) const {
    for (size_t begin = at - std::min(at, longest_); begin <= at && begin < text.size(); begin++) {
        const AddedToken* const token = longest_at(text, begin);
        if (token && begin + token->content.size() >= at) return false;
    }
    return true;
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, Normalize normalize) : normalize_(normalize) {
    std::vector<AddedToken> whole, in_pieces;
    for (const AddedToken& token : tokens) {
        (token.normalized ? in_pieces : whole).push_back(token);
        if (token.normalized && normalize) in_pieces.back().content = normalize(token.content);
    }
    whole_ = Set(std::move(whole));
    in_pieces_ = Set(std::move(in_pieces));
}

void AddedTokens::split(std::string_view text, const Consume& consume) const {
    if (in_pieces_.empty() && !normalize_) return whole_.split(text, consume);
    whole_.split(text, [&](std::string_view piece, const AddedToken* token) {
        if (token) consume(piece, token);
        else if (normalize_) in_pieces_.split(normalize_(piece), consume);
        else in_pieces_.split(piece, consume);
    });
}

bool AddedTokens::can_cut(std::string_view text, size_t at) const {
    return whole_.can_cut(text, at) && in_pieces_.can_cut(text, at);
}
