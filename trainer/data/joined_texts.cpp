#include "trainer/data/joined_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "system/error.h"
#include "system/file_reader.h"
#include "system/printable.h"
#include "system/text_encoding.h"
#include "system/utf8_stream.h"

static constexpr size_t piece_bytes = size_t{4} << 20;  // text that is read and tokenized at a time

// `at`, moved back by up to three bytes to the start of its UTF-8 character, so that no character is cut
// in two.
static size_t start_of_character(const FileReader& file, size_t at) {
    // A character has at most three continuation bytes. More of them are not UTF-8, and then any cut will
    // do.
    const size_t least = at - std::min<size_t>(at, 3);
    const std::string bytes = file.text(least, at + 1);
    size_t start = at;
    while (start > least && start < file.size() && (bytes[start - least] & 0xC0) == 0x80) start--;
    return start;
}

DividedTexts divide_texts(const std::vector<std::string>& paths, double fraction) {
    size_t total = 0;
    for (const std::string& path : paths) total += FileReader(path).size();
    size_t rest = static_cast<size_t>(static_cast<double>(total) * (1 - fraction));  // still for training
    DividedTexts divided;
    for (const std::string& path : paths) {
        const FileReader file(path);
        const size_t cut = start_of_character(file, std::min(rest, file.size()));
        if (cut > 0) divided.train.push_back({path, 0, cut});
        if (cut < file.size()) divided.val.push_back({path, cut, file.size()});
        rest = cut < file.size() ? 0 : rest - cut;  // everything after the divided text is held out
    }
    return divided;
}

JoinedTexts::JoinedTexts(Tokenizer& tokenizer, Consume consume, bool begins)
    : tokenizer_(tokenizer),
      consume_(std::move(consume)),
      ends_before_(tokenizer.unread_ends()),
      begins_(begins) {}

std::vector<Token> tokens_before_text(const Tokenizer& tokenizer, bool ends, bool begins) {
    std::vector<Token> tokens;
    const std::optional<int> end = tokenizer.end_of_text(), begin = tokenizer.begin_of_text();
    if (ends && end) tokens.push_back(static_cast<Token>(*end));
    CHECK(!begins || begin,
          "--bos: the tokenizer {} has no token that begins a text; expected one whose tokenizer_config.json "
          "names a bos_token",
          tokenizer.name());
    if (begins && (tokens.empty() || begin != end)) tokens.push_back(static_cast<Token>(*begin));
    return tokens;
}

void JoinedTexts::append(const TextPart& part) {
    const FileReader file(part.path);
    const size_t end = std::min(part.end, file.size());
    const bool has_mark =
        part.begin == 0 && file.text(0, std::min(end, byte_order_mark.size())) == byte_order_mark;
    size_t next = has_mark ? byte_order_mark.size() : std::min(part.begin, end);
    if (has_mark) findings_.marked.push_back(part.path);
    if (next == end) return;
    const std::vector<Token> before = tokens_before_text(tokenizer_, !is_empty_, begins_);
    if (!before.empty()) consume_(before);
    is_empty_ = false;
    bool is_utf8 = true;
    const auto more = [&](std::string& text) {
        // A long word is tokenized as a whole. Each time that its end is not found, as much again is read, so
        // that it is searched through only a few times.
        const size_t begin = next, wanted = std::max(piece_bytes, text.size());
        next = end - begin > wanted ? start_of_character(file, begin + wanted) : end;
        const std::string piece = file.text(begin, next);
        if (is_utf8) is_utf8 = look_at(part.path, piece, begin);
        text += piece;
        bytes_ += piece.size();
        return next < end;
    };
    tokenizer_.encode_in_pieces(more, consume_);
    findings_.unread_ends = tokenizer_.unread_ends() - ends_before_;
}

// True if a piece of a text, which begins at byte `begin` of the file, is UTF-8.
bool JoinedTexts::look_at(const std::string& path, std::string_view piece, size_t begin) {
    const size_t invalid = first_invalid_utf8(piece);
    if (invalid == piece.size()) return true;
    if (findings_.not_utf8.empty())
        findings_.first_bytes =
            fmt::format("byte {:#04x} at {}", static_cast<unsigned char>(piece[invalid]), begin + invalid);
    findings_.not_utf8.push_back(path);
    return false;
}

void TextFindings::add(const TextFindings& more) {
    if (not_utf8.empty()) first_bytes = more.first_bytes;
    // The text that two streams divide ends the first and begins the second.
    const bool divided = !not_utf8.empty() && !more.not_utf8.empty() && not_utf8.back() == more.not_utf8[0];
    marked.insert(marked.end(), more.marked.begin(), more.marked.end());
    not_utf8.insert(not_utf8.end(), more.not_utf8.begin() + divided, more.not_utf8.end());
    unread_ends += more.unread_ends;
}

std::vector<std::string> TextFindings::notes() const {
    std::vector<std::string> lines;
    const auto others = [](size_t count) {
        return count == 1 ? "" : fmt::format("; {} other text{} likewise", count - 1, count == 2 ? "" : "s");
    };
    if (!marked.empty())
        lines.push_back(fmt::format("{}: the byte order mark at its start is left out{}", marked[0],
                                    others(marked.size())));
    if (unread_ends > 0) lines.push_back(note_of_unread_ends(unread_ends));
    if (!not_utf8.empty())
        lines.push_back(fmt::format(
            "{}: is not UTF-8 ({}), and its bytes are taken as they are{}; if it is in another encoding, "
            "convert it, for example: iconv -f WINDOWS-1252 -t UTF-8 {} > utf8.txt",
            not_utf8[0], first_bytes, others(not_utf8.size()), in_shell(not_utf8[0])));
    return lines;
}

std::string name_of_texts(const std::vector<TextPart>& parts) {
    if (parts.size() == 1) return parts[0].path;
    return fmt::format("{} and {} other text{}", parts[0].path, parts.size() - 1,
                       parts.size() == 2 ? "" : "s");
}
