#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string_view>

#include "system/line_editor.h"
#include "system/stop_signal.h"

namespace {

// libedit's own function tries again after a signal, so that Ctrl-C would have to be pressed twice.
int read_character(EditLine*, wchar_t* to) {
    std::mbstate_t state = {};
    for (;;) {
        if (!wait_for_input(STDIN_FILENO)) return -1;
        char byte;
        const ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got <= 0) return static_cast<int>(got);
        const size_t bytes = std::mbrtowc(to, &byte, 1, &state);
        if (bytes == static_cast<size_t>(-2)) continue;  // the beginning of a character
        if (bytes == static_cast<size_t>(-1)) *to = L'\uFFFD';
        return 1;
    }
}

char* prompt(EditLine*) {
    static char text[] = "> ";
    return text;
}

class Libedit : public LineEditor {
public:
    explicit Libedit(const char* program)
        : editor_(el_init(program, stdin, stderr, stderr)), history_(history_init()) {
        el_set(editor_, EL_PROMPT, prompt);
        el_set(editor_, EL_EDITOR, "emacs");
        el_set(editor_, EL_GETCFN, read_character);
        HistEvent event;
        history(history_, &event, H_SETSIZE, 100);
        history(history_, &event, H_SETUNIQUE, 1);
        el_set(editor_, EL_HIST, history, history_);
    }
    ~Libedit() override {
        history_end(history_);
        el_end(editor_);
    }

    std::optional<std::string> read() override {
        int length = 0;
        const char* const line = el_gets(editor_, &length);
        if (line == nullptr || length <= 0) return std::nullopt;
        const std::string_view text(line, static_cast<size_t>(length));
        std::string typed(text.substr(0, text.find_last_not_of("\r\n") + 1));
        HistEvent event;
        if (!typed.empty()) history(history_, &event, H_ENTER, typed.c_str());
        return typed;
    }

private:
    EditLine* editor_;
    History* history_;
};

}  // namespace

std::unique_ptr<LineEditor> make_line_editor(const char* program) {
    const char* const terminal = std::getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || terminal == nullptr ||
        std::string_view(terminal) == "dumb")
        return nullptr;
    std::setlocale(LC_CTYPE, "C.UTF-8");  // so that a character of several bytes is one
    return std::make_unique<Libedit>(program);
}
