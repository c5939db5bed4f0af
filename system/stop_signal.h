// stop_signal.h: signals that ask a program to end what is under way and then itself. A second Ctrl-C or
// SIGTERM ends it at once.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <initializer_list>

// Set by a signal's handler, which can reach nothing but a global.
inline volatile std::sig_atomic_t stop_signal_received = 0;

// Written on stderr by the handler, at once: what is under way may take seconds to end.
inline const char* volatile stop_answer = nullptr;

inline bool stop_requested() { return stop_signal_received != 0; }

inline void handle_stop(int received) {
    if (!stop_requested() && stop_answer) {
        const int error = errno;
        [[maybe_unused]] const auto written = write(STDERR_FILENO, stop_answer, std::strlen(stop_answer));
        errno = error;
    }
    stop_signal_received = 1;
    // SLURM's warning may come twice, by SLURM and passed on by mpirun, and leaves time for a checkpoint. So
    // may a terminal's end, by the kernel and by the shell.
    if (received != SIGUSR1 && received != SIGHUP) std::signal(received, SIG_DFL);
}

// flags: of sigaction. Without SA_RESTART a signal also ends the waiting for input.
inline void stop_on(std::initializer_list<int> signals, int flags = SA_RESTART) {
    struct sigaction action = {};
    action.sa_handler = handle_stop;
    action.sa_flags = flags;
    for (const int signal : signals) sigaction(signal, &action, nullptr);
}

// Whether SIGHUP was ignored, as under nohup, when the program was started. Libraries that MPI brings (UCX,
// to print a stack) catch it before main begins, so main cannot see it any more.
bool hangup_was_ignored();

// After a stop that ended something but not the program: the next signal asks again.
inline void wait_for_next_stop(std::initializer_list<int> signals) {
    stop_signal_received = 0;
    stop_on(signals, 0);
}

// Answers the first signal with this line, which must be a literal, if a person watches.
inline void answer_stop(const char* line) {
    if (isatty(STDERR_FILENO)) stop_answer = line;
}
