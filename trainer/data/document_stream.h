// document_stream.h: documents as JSON lines from a file descriptor, as written by data-set scripts or
// `zcat some.jsonl.gz`.
//   {"text": "the document", "id": "file:row"}   one object a line; blank lines and other keys are ignored
//   {"end": true}                                optional last line, which proves that nothing is missing
//   A document's place identifies it for a later run that resumes there: its number in the input (from 0)
//   or, if a key is named for it, the string or whole number under that key, which must be there and differ
//   between documents.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

// The keys of a document's JSON object.
struct DocumentKeys {
    std::string text = "text";
    std::string place = "";       // empty: documents are numbered
    bool place_optional = false;  // documents without the key are numbered
    bool skip_bad = false;        // lines that are no documents are left out and counted
};

struct Document {
    std::string text{}, place{};
    bool end = false;       // the line {"end": true}; it holds no document
    bool replaced = false;  // halves of surrogate pairs were replaced by U+FFFD
};

// Parses one line. UsageError (without a line number) if it is not a document. place is empty if the
// document has to be numbered.
Document parse_document(std::string_view line, const DocumentKeys& keys);

// Finds places that come twice by their hashes, in at most 1 GiB of memory: the latest 16 million places are
// always remembered, and up to 21 million.
class PlaceMemory {
public:
    explicit PlaceMemory(size_t a_generation = 5'334'000) : a_generation_(a_generation) {}
    // False if the place is remembered already.
    bool add(std::string_view place);

private:
    size_t a_generation_;
    std::array<std::unordered_set<uint64_t>, 4> latest_;  // generations, the newest first
};

class DocumentStream {
public:
    // With until_end, input that ends without {"end": true} is incomplete and an Error. interrupted() is
    // called while waiting for input, and throws to stop. name stands for the input in messages.
    DocumentStream(int file, const std::string& name, const DocumentKeys& keys, bool until_end,
                   std::function<void()> interrupted);

    // The next document, or std::nullopt at the end. UsageError, with the line number, for a line that is
    // not a document, and for a place that came before.
    std::optional<Document> next();
    size_t count() const { return documents_; }  // documents returned by next()
    // Lines about documents that were left out, and about halves of surrogate pairs.
    std::vector<std::string> notes() const;

private:
    std::optional<std::string_view> next_line();  // valid until the next call
    std::optional<Document> document_in(std::string_view line);
    std::string place_of_line() const;

    int file_;
    std::string name_;
    DocumentKeys keys_;
    PlaceMemory places_;
    bool until_end_, at_end_ = false;
    std::function<void()> interrupted_;
    std::string buffer_;
    size_t start_ = 0;  // where the unread part of the buffer starts
    size_t line_ = 0, documents_ = 0, skipped_ = 0, replaced_ = 0;
    std::string first_skipped_;  // the line about the first document that was left out
};
