#include "trainer/data/document_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "system/error.h"
#include "system/json_text.h"
#include "system/printable.h"

static constexpr size_t read_bytes = size_t{1} << 20;
static constexpr size_t longest_line = size_t{1} << 30;

// The start of the line for a message, without characters that would disturb a terminal.
static std::string start_of(std::string_view line) {
    return printable(line.substr(0, 40)) + (line.size() > 40 ? "..." : "");
}

Document parse_document(std::string_view line, const std::string& field) {
    const nlohmann::json object = parse_json(line);
    CHECK(object.is_object(), "expected a JSON object such as {{\"{}\": \"...\"}} in UTF-8, found '{}'",
          field, start_of(line));
    Document document;
    if (object.size() == 1 && object.contains("end") && object["end"] == true) {
        document.end = true;
        return document;
    }
    const auto text = object.find(field);
    CHECK(text != object.end() && text->is_string(), "expected the string \"{}\" in '{}'", field,
          start_of(line));
    document.text = text->get<std::string>();
    if (const auto place = object.find("place"); place != object.end() && field != "place") {
        CHECK(place->is_string() && !place->get_ref<const std::string&>().empty(),
              "\"place\" is not a string, or is empty, in '{}'", start_of(line));
        document.place = place->get<std::string>();
    }
    return document;
}

DocumentStream::DocumentStream(int file, const std::string& name, const std::string& field, bool until_end,
                               std::function<void()> interrupted)
    : file_(file), name_(name), field_(field), until_end_(until_end), interrupted_(std::move(interrupted)) {}

std::optional<Document> DocumentStream::next() {
    while (const std::optional<std::string_view> line = next_line()) {
        if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
        try {
            CHECK(!at_end_, "expected nothing after {{\"end\": true}}, found '{}'", start_of(*line));
            Document document = parse_document(*line, field_);
            if (document.end) {
                at_end_ = true;
                continue;
            }
            if (document.place.empty()) document.place = std::to_string(documents_);
            documents_++;
            return document;
        } catch (const UsageError& error) {
            throw UsageError(fmt::format("{}, line {}: {}", name_, line_, error.what()));
        }
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
        ssize_t got = -1;
        while ((got = read(file_, buffer_.data() + searched, read_bytes)) < 0) {
            if (errno != EINTR)
                throw Error(fmt::format("{}: cannot be read: {}", name_, std::strerror(errno)));
            interrupted_();
        }
        interrupted_();
        buffer_.resize(searched + static_cast<size_t>(got));
        if (got == 0) {
            if (buffer_.empty()) return std::nullopt;
            buffer_ += '\n';  // the last line may lack its newline
        }
    }
}
