// status_line.h: the line of a terminal that shows how far a program is, painted again and again in place. It
//   fits the window, whose width is looked up each time. Where nobody watches nothing is painted: in a pipe
//   or a file, with TERM=dumb, and under mpirun, which gives its processes a terminal of its own even if a
//   file is all that gets their output.
#pragma once
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

// Part of the line. In a window too narrow for all of them those of the highest rank are left out first; rank
// 0 always stays.
struct StatusPart {
    std::string text;
    int rank = 0;
};

// "[####......]": the done fraction, from 0 to 1, of `width` characters and two brackets.
std::string progress_bar(double done, size_t width);

// The parts in their order, separated by " | ", in at most `columns` characters.
std::string fit_parts(const std::vector<StatusPart>& parts, size_t columns);

// Every function may be called from any thread.
class StatusLine {
public:
    // file: stdout or stderr. The environment decides whether it is painted, and whether in colour (NO_COLOR:
    // https://no-color.org).
    explicit StatusLine(std::FILE* file);
    ~StatusLine() { finish(); }
    StatusLine(const StatusLine&) = delete;

    bool is_painted() const { return painted_; }
    // Instead of the line that stands there. A lasting one stays in the window when something else is
    // printed; another is erased.
    void paint(const std::vector<StatusPart>& parts, bool lasting);
    // Lines of their own, painted or not.
    void print(std::string_view text);
    void erase();   // what is painted, unless it lasts
    void finish();  // the next output begins on a new line

private:
    enum class Open { nothing, lasting, passing };
    void close();

    std::FILE* file_;
    bool painted_, colour_ = false;
    Open open_ = Open::nothing;
    std::mutex mutex_;
};

// Shows how far something is that takes longer than two seconds: "validating: 40 of 120 batches", on a
// terminal several times a second and erased at the end, elsewhere a line every ten seconds. total 0: nobody
// knows.
class Progress {
public:
    Progress(StatusLine& line, std::string what, std::string unit, size_t total);
    ~Progress() { line_.erase(); }
    Progress(const Progress&) = delete;

    void at(size_t done);

private:
    using Clock = std::chrono::steady_clock;
    StatusLine& line_;
    std::string what_, unit_;
    size_t total_;
    Clock::time_point begin_ = Clock::now(), due_;
};

// "45s", "3m07s", "2h05m"
std::string duration_text(double seconds);
