// status_line.h: a line on the terminal that shows the program's progress and is repainted in place. It
// fits the window, whose width is queried each time. Nothing is painted in a pipe or a file, with
// TERM=dumb, or under mpirun, which gives its processes a pseudo-terminal even if their output goes to a
// file.
#pragma once
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

// A part of the line. If the window is too narrow, parts of the highest rank are dropped first; parts of
// rank 0 always stay.
struct StatusPart {
    std::string text;
    int rank = 0;
};

// "[####......]": `done`, from 0 to 1, as a bar of `width` characters between two brackets.
std::string progress_bar(double done, size_t width);

// The parts in order, separated by " | ", in at most `columns` characters.
std::string fit_parts(const std::vector<StatusPart>& parts, size_t columns);

// All functions may be called from any thread.
class StatusLine {
public:
    // file: stdout or stderr. The environment decides whether the line is painted, and whether in colour
    // (NO_COLOR: https://no-color.org).
    explicit StatusLine(std::FILE* file);
    ~StatusLine() { finish(); }
    StatusLine(const StatusLine&) = delete;

    bool is_painted() const { return painted_; }
    // Replaces the current line. A lasting line stays in the window when other output follows; a passing
    // one is erased.
    void paint(const std::vector<StatusPart>& parts, bool lasting);
    // Prints whole lines, whether the status line is painted or not.
    void print(std::string_view text);
    void erase();   // erases the painted line unless it is a lasting one
    void finish();  // makes the next output start on a new line

private:
    enum class Open { nothing, lasting, passing };
    void close();

    std::FILE* file_;
    bool painted_, colour_ = false;
    Open open_ = Open::nothing;
    std::mutex mutex_;
};

// Progress of an operation that takes longer than two seconds: "validating: 40 of 120 batches". On a
// terminal it is repainted ten times a second and erased at the end; elsewhere one line is printed every
// ten seconds. total = 0: the total is unknown.
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
