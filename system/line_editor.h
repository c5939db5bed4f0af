// line_editor.h: lines that a person types at a terminal, with cursor keys, editing and earlier lines.
#pragma once
#include <memory>
#include <optional>
#include <string>

class LineEditor {
public:
    virtual ~LineEditor() = default;
    // The next line of standard input without its line break; std::nullopt at the end of the input, or if a
    // signal asked to stop meanwhile (stop_signal.h). The prompt is "> ", on standard error.
    virtual std::optional<std::string> read() = 0;
};

// libedit's editor; null without libedit, and where standard input or standard error is no terminal that it
// can move the cursor of.
std::unique_ptr<LineEditor> make_line_editor(const char* program);
