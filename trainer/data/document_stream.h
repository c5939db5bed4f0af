// document_stream.h: documents as JSON lines from a file descriptor, as written by data-set scripts or
// `zcat some.jsonl.gz`.
//   {"text": "the document", "place": "file:row"}   one object a line; blank lines and other keys are ignored
//   {"end": true}                                   optional last line, which proves that nothing is missing
//   "place" identifies the document for a later run that resumes here. If it is absent, the document's
//   number in the input (from 0) is used.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

struct Document {
    std::string text, place;
    bool end = false;  // the line {"end": true}; it holds no document
};

// Parses one line. UsageError (without a line number) if it is not a document. place is empty if the line
// has none.
Document parse_document(std::string_view line, const std::string& field);

class DocumentStream {
public:
    // field is the key of the text. With until_end, input that ends without {"end": true} is incomplete
    // and an Error. interrupted() is called while waiting for input, and throws to stop. name stands for
    // the input in messages.
    DocumentStream(int file, const std::string& name, const std::string& field, bool until_end,
                   std::function<void()> interrupted);

    // The next document, or std::nullopt at the end. UsageError, with the line number, for a line that is
    // not a document.
    std::optional<Document> next();
    size_t count() const { return documents_; }  // documents returned by next()

private:
    std::optional<std::string_view> next_line();  // valid until the next call

    int file_;
    std::string name_, field_;
    bool until_end_, at_end_ = false;
    std::function<void()> interrupted_;
    std::string buffer_;
    size_t start_ = 0;  // where the unread part of the buffer starts
    size_t line_ = 0, documents_ = 0;
};
