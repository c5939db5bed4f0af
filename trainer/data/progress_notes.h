// progress_notes.h: lines about work that takes long.
#pragma once
#include <chrono>

#include "system/note.h"

class ProgressNotes {
public:
    // The first line is due after `seconds`, and later ones after five times as long. Without a note nothing
    // is printed.
    explicit ProgressNotes(const Note& note, double seconds = 2)
        : note_(note), seconds_(seconds), due_(Clock::now() + duration(seconds)) {}

    // line() makes the text, and is called only when a line is due.
    template <class Line>
    void at(const Line& line) {
        if (!note_ || Clock::now() < due_) return;
        due_ = Clock::now() + duration(5 * seconds_);
        note_(line());
    }

private:
    using Clock = std::chrono::steady_clock;
    static Clock::duration duration(double seconds) {
        return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }

    const Note& note_;
    double seconds_;
    Clock::time_point due_;
};
