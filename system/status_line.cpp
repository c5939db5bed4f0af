#include "system/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "system/print_line.h"
#include "system/printable.h"

namespace {

using Seconds = std::chrono::duration<double>;
constexpr double first_progress = 2, painted_interval = 0.1, printed_interval = 10;  // seconds

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

bool is_watched(std::FILE* file) {
    if (isatty(fileno(file)) == 0) return false;
    const std::string terminal = environment("TERM");
    if (terminal.empty() || terminal == "dumb") return false;
    // These are set by Open MPI, by MPICH and its relatives, and by PMIx.
    return environment("OMPI_COMM_WORLD_RANK").empty() && environment("PMI_RANK").empty() &&
           environment("PMIX_RANK").empty();
}

// One column fewer than the window: a character in the last column makes some terminals start a new line.
size_t columns_of(std::FILE* file) {
    winsize window = {};
    const bool known = ioctl(fileno(file), TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
    return known ? window.ws_col - size_t{1} : 79;
}

// Width of UTF-8 text, counting one column for each character.
size_t width_of(std::string_view text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string cut_to(std::string_view text, size_t columns) {
    size_t end = 0, width = 0;
    for (; end < text.size(); end++) {
        if ((text[end] & 0xC0) != 0x80 && ++width > columns) break;
    }
    return std::string(text.substr(0, end));
}

// Colours the filled part of the bar green.
std::string coloured(std::string line) {
    const size_t begin = line.find("[#");
    if (begin == std::string::npos) return line;
    line.insert(line.find_first_not_of('#', begin + 1), "\x1b[0m");
    return line.insert(begin + 1, "\x1b[32m");
}

}  // namespace

std::string progress_bar(double done, size_t width) {
    const double filled = std::clamp(done, 0.0, 1.0) * static_cast<double>(width);
    const size_t count = std::isfinite(filled) ? static_cast<size_t>(filled) : 0;
    return "[" + std::string(count, '#') + std::string(width - count, '.') + "]";
}

std::string fit_parts(const std::vector<StatusPart>& parts, size_t columns) {
    constexpr std::string_view between = " | ";
    int most = 0;
    for (const StatusPart& part : parts) most = std::max(most, part.rank);
    std::string line;
    for (; most >= 0; most--) {
        line.clear();
        for (const StatusPart& part : parts) {
            if (part.rank > most || part.text.empty()) continue;
            if (!line.empty()) line += between;
            line += part.text;
        }
        if (width_of(line) <= columns) return line;
    }
    return cut_to(line, columns);
}

std::string duration_text(double seconds) {
    const auto s = static_cast<long long>(std::llround(seconds));
    if (s < 60) return fmt::format("{}s", s);
    if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
    return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

StatusLine::StatusLine(std::FILE* file)
    : file_(file), painted_(is_watched(file)), colour_(painted_ && environment("NO_COLOR").empty()) {}

void StatusLine::paint(const std::vector<StatusPart>& parts, bool lasting) {
    const std::lock_guard lock(mutex_);
    if (!painted_) return;
    if (open_ == Open::lasting && !lasting) std::fputc('\n', file_);
    const std::string line = printable(fit_parts(parts, columns_of(file_)));
    // fails silently, as print_line does
    std::fputs(("\r\x1b[2K" + (colour_ ? coloured(line) : line)).c_str(), file_);
    std::fflush(file_);
    open_ = lasting ? Open::lasting : Open::passing;
}

// Ends or erases the open line before other output.
void StatusLine::close() {
    if (open_ == Open::lasting) std::fputc('\n', file_);
    if (open_ == Open::passing) std::fputs("\r\x1b[2K", file_);
    if (open_ != Open::nothing) std::fflush(file_);
    open_ = Open::nothing;
}

void StatusLine::print(std::string_view text) {
    const std::lock_guard lock(mutex_);
    close();
    print_line(file_, text);
    std::fflush(file_);
}

void StatusLine::erase() {
    const std::lock_guard lock(mutex_);
    if (open_ == Open::passing) close();
}

void StatusLine::finish() {
    const std::lock_guard lock(mutex_);
    close();
}

Progress::Progress(StatusLine& line, std::string what, std::string unit, size_t total)
    : line_(line),
      what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      due_(begin_ + std::chrono::duration_cast<Clock::duration>(Seconds(first_progress))) {}

void Progress::at(size_t done) {
    const auto now = Clock::now();
    if (now < due_ || done == 0) return;
    const double interval = line_.is_painted() ? painted_interval : printed_interval;
    due_ = now + std::chrono::duration_cast<Clock::duration>(Seconds(interval));
    std::vector<StatusPart> parts = {{fmt::format("{}: {} {}", what_, done, unit_)}};
    if (total_ > 0) {
        const double fraction = static_cast<double>(done) / static_cast<double>(total_);
        const std::string left = duration_text(Seconds(now - begin_).count() * (1 / fraction - 1)) + " left";
        parts = {{fmt::format("{}: {} of {} {}", what_, done, total_, unit_)},
                 {progress_bar(fraction, 20), 2},
                 {left, 1}};
    }
    if (line_.is_painted()) {
        line_.paint(parts, false);
    } else {
        line_.print(parts.front().text + (parts.size() > 1 ? ", " + parts.back().text : ""));
    }
}
