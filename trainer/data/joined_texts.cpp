#include "trainer/data/joined_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "system/mapped_file.h"
#include "system/text_encoding.h"
#include "system/utf8_stream.h"

static constexpr size_t piece_bytes = size_t{4} << 20;  // text that is tokenized at a time

// `at`, moved back by up to three bytes to the start of its UTF-8 character, so that no character is cut
// in two.
static size_t start_of_character(std::string_view text, size_t at) {
    size_t start = at;
    // A character has at most three continuation bytes. More of them are not UTF-8, and then any cut will
    // do.
    for (int i = 0; i < 3 && start > 0 && start < text.size() && (text[start] & 0xC0) == 0x80; i++) start--;
    return start;
}

DividedTexts divide_texts(const std::vector<std::string>& paths, double fraction) {
    size_t total = 0;
    for (const std::string& path : paths) total += MappedFile(path).bytes().size();
    size_t rest = static_cast<size_t>(static_cast<double>(total) * (1 - fraction));  // still for training
    DividedTexts divided;
    for (const std::string& path : paths) {
        const MappedFile file(path);
        const std::string_view text = file.bytes();
        const size_t cut = start_of_character(text, std::min(rest, text.size()));
        if (cut > 0) divided.train.push_back({path, 0, cut});
        if (cut < text.size()) divided.val.push_back({path, cut, text.size()});
        rest = cut < text.size() ? 0 : rest - cut;  // everything after the divided text is held out
    }
    return divided;
}

JoinedTexts::JoinedTexts(Tokenizer& tokenizer, Consume consume)
    : tokenizer_(tokenizer), consume_(std::move(consume)), ends_before_(tokenizer.unread_ends()) {}

void JoinedTexts::append(const TextPart& part) {
    const MappedFile file(part.path);
    std::string_view text = file.bytes().substr(0, part.end);
    const bool has_mark = part.begin == 0 && text.starts_with(byte_order_mark);
    const size_t begin = has_mark ? byte_order_mark.size() : std::min(part.begin, text.size());
    text.remove_prefix(begin);
    texts_++;
    if (has_mark) findings_.marked.push_back(part.path);
    if (text.empty()) return;
    look_at(part.path, text, begin);
    if (const std::optional<int> end = tokenizer_.end_of_text(); end && !is_empty_) {
        const uint16_t token = static_cast<uint16_t>(*end);
        consume_({&token, 1});
    }
    is_empty_ = false;
    const size_t before = bytes_;
    tokenizer_.encode_in_pieces(text, piece_bytes, [&](std::span<const uint16_t> tokens) {
        bytes_ = std::min(bytes_ + piece_bytes, before + text.size());
        consume_(tokens);
    });
    bytes_ = before + text.size();
    findings_.unread_ends = tokenizer_.unread_ends() - ends_before_;
}

// begin: where the text begins in the file.
void JoinedTexts::look_at(const std::string& path, std::string_view text, size_t begin) {
    const size_t invalid = first_invalid_utf8(text);
    if (invalid == text.size()) return;
    if (findings_.not_utf8.empty())
        findings_.first_bytes =
            fmt::format("byte {:#04x} at {}", static_cast<unsigned char>(text[invalid]), begin + invalid);
    findings_.not_utf8.push_back(path);
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
            "{0}: is not UTF-8 ({1}), and its bytes are taken as they are{2}; if it is in another encoding, "
            "convert it, for example: iconv -f WINDOWS-1252 -t UTF-8 '{0}' > utf8.txt",
            not_utf8[0], first_bytes, others(not_utf8.size())));
    return lines;
}

std::string name_of_texts(const std::vector<TextPart>& parts) {
    if (parts.size() == 1) return parts[0].path;
    return fmt::format("{} and {} other text{}", parts[0].path, parts.size() - 1,
                       parts.size() == 2 ? "" : "s");
}
