#include "trainer/data/document_stream.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "system/error.h"
#include "system/json_text.h"
#include "system/printable.h"
#include "system/stop_signal.h"

static constexpr size_t read_bytes = size_t{1} << 20;
static constexpr size_t longest_line = size_t{1} << 30;

// The start of the line for a message, without characters that would disturb a terminal.
static std::string start_of(std::string_view line) {
    return printable(line.substr(0, 40)) + (line.size() > 40 ? "..." : "");
}

// The string or whole number under the key, as text.
static std::string place_in(const nlohmann::json& object, const std::string& key, std::string_view line) {
    const auto place = object.find(key);
    CHECK(place != object.end(), "expected \"{}\", which --place-field names, in '{}'", key, start_of(line));
    if (place->is_number_integer()) return place->dump();
    CHECK(place->is_string() && !place->get_ref<const std::string&>().empty(),
          "\"{}\" is neither a whole number nor a string with a character, in '{}'", key, start_of(line));
    return place->get<std::string>();
}

Document parse_document(std::string_view line, const DocumentKeys& keys) {
    const auto [object, replaced, problem] = read_json(line);
    CHECK(object.is_object(), "expected a JSON object such as {{\"{}\": \"...\"}} in UTF-8, found '{}'{}",
          keys.text, start_of(line), problem.empty() ? "" : "; " + problem);
    Document document{.replaced = replaced};
    if (object.size() == 1 && object.contains("end") && object["end"] == true) {
        document.end = true;
        return document;
    }
    const auto text = object.find(keys.text);
    CHECK(text != object.end(), "expected the string \"{}\" in '{}'", keys.text, start_of(line));
    CHECK(text->is_string(), "expected a string, but \"{}\" is {} in '{}'", keys.text, shown(*text),
          start_of(line));
    document.text = text->get<std::string>();
    const bool numbered = keys.place.empty() || (keys.place_optional && !object.contains(keys.place));
    if (!numbered) document.place = place_in(object, keys.place, line);
    return document;
}

std::vector<std::string> DocumentStream::notes() const {
    std::vector<std::string> lines;
    if (skipped_ > 0)
        lines.push_back(fmt::format("{} document{} left out (--skip-bad); the first: {}", skipped_,
                                    skipped_ == 1 ? " was" : "s were", first_skipped_));
    if (replaced_ > 0) lines.push_back(replaced_halves(replaced_, "document"));
    return lines;
}

bool PlaceMemory::add(std::string_view place) {
    const uint64_t hash = XXH3_64bits(place.data(), place.size());
    if (latest_[0].size() == a_generation_) {
        std::rotate(latest_.begin(), latest_.end() - 1, latest_.end());
        latest_[0] = {};
    }
    for (const auto& generation : latest_)
        if (generation.contains(hash)) return false;
    return latest_[0].insert(hash).second;
}

DocumentStream::DocumentStream(int file, const std::string& name, const DocumentKeys& keys, bool until_end,
                               std::function<void()> interrupted)
    : file_(file), name_(name), keys_(keys), until_end_(until_end), interrupted_(std::move(interrupted)) {}

std::string DocumentStream::place_of_line() const { return fmt::format("{}, line {}: ", name_, line_); }

// std::nullopt: the line is no document, and is left out.
std::optional<Document> DocumentStream::document_in(std::string_view line) {
    try {
        return parse_document(line, keys_);
    } catch (const UsageError& error) {
        const std::string problem = place_of_line() + error.what();
        if (!keys_.skip_bad)
            throw UsageError(problem + "; --skip-bad leaves such documents out and counts them");
        if (skipped_++ == 0) first_skipped_ = problem;
        return std::nullopt;
    }
}

std::optional<Document> DocumentStream::next() {
    while (const std::optional<std::string_view> line = next_line()) {
        if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
        CHECK(!at_end_, "{}expected nothing after {{\"end\": true}}, found '{}'", place_of_line(),
              start_of(*line));
        std::optional<Document> document = document_in(*line);
        if (!document) continue;
        if (document->end) {
            at_end_ = true;
            continue;
        }
        replaced_ += document->replaced;
        if (document->place.empty()) document->place = std::to_string(documents_);
        CHECK(
            keys_.place.empty() || places_.add(document->place),
            "{}the place \"{}\" (--place-field {}) comes for the second time; expected a field that differs "
            "between documents{}",
            place_of_line(), printable(document->place), keys_.place,
            keys_.place_optional ? "; remove the finished shards and their list to start again without that "
                                   "field"
                                 : "");
        documents_++;
        return document;
    }
    if (until_end_ && !at_end_)
        throw Error(
            fmt::format("{}: ended after line {}; expected {{\"end\": true}} as the last line; the same "
                        "command continues after the finished shards",
                        name_, line_));
    return std::nullopt;
}

std::optional<std::string_view> DocumentStream::next_line() {
    for (size_t searched = start_;;) {
        if (const size_t end = buffer_.find('\n', searched); end != std::string::npos) {
            const std::string_view line(buffer_.data() + start_, end - start_);
            start_ = end + 1;
            line_++;
            return line;
        }
        buffer_.erase(0, start_);
        start_ = 0;
        searched = buffer_.size();
        CHECK(searched < longest_line, "{}, line {}: longer than {} bytes; expected a document a line", name_,
              line_ + 1, longest_line);
        buffer_.resize(searched + read_bytes);
        interrupted_();
        if (!wait_for_input(file_)) interrupted_();
        const ssize_t got = read(file_, buffer_.data() + searched, read_bytes);
        if (got < 0) throw Error(fmt::format("{}: cannot be read: {}", name_, std::strerror(errno)));
        buffer_.resize(searched + static_cast<size_t>(got));
        if (got == 0) {
            if (buffer_.empty()) return std::nullopt;
            buffer_ += '\n';  // the last line may lack its newline
        }
    }
}
