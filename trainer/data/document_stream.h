// document_stream.h: documents as JSON lines from a file descriptor, as data sets' programs and `zcat
// some.jsonl.gz` write them.
//   {"text": "the document", "place": "file:row"}     one object a line; blank lines are passed over, other
//                                                     keys too
//   {"end": true}                                     optional last line: nothing was broken off
// "place" names the document for whoever goes on later; without it, the document's number in the input (from
// 0) does.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

struct Document {
    std::string text, place;
    bool end = false;  // the last line, and no document
};

// One line. UsageError (without a line's number) if it is not a document; place is empty where the line has
// none.
Document parse_document(std::string_view line, const std::string& field);

class DocumentStream {
public:
    // field: the key that holds the text. until_end: input without its last line {"end": true} is an Error:
    // it was broken off.
    // interrupted() is asked while waiting; it throws to give up. name: what messages call the input.
    DocumentStream(int file, const std::string& name, const std::string& field, bool until_end,
                   std::function<void()> interrupted);

    // The next document, or nothing at the end. UsageError, with the line's number, for what is not a
    // document.
    std::optional<Document> next();
    size_t count() const { return documents_; }  // of those that next() has given

private:
    std::optional<std::string_view> next_line();  // valid until the next call

    int file_;
    std::string name_, field_;
    bool until_end_, at_end_ = false;
    std::function<void()> interrupted_;
    std::string buffer_;
    size_t start_ = 0;  // of the unread rest of the buffer
    size_t line_ = 0, documents_ = 0;
};
