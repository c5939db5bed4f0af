// stop_signal.h: signals that ask a program to finish its current work and then end. A second Ctrl-C or
// SIGTERM ends it at once.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <initializer_list>

// Set by the signal handler, which can only access globals.
inline volatile std::sig_atomic_t stop_signal_received = 0;

// The handler writes this to stderr at once, since the current work may take seconds to finish.
inline const char* volatile stop_answer = nullptr;

inline bool stop_requested() { return stop_signal_received != 0; }

inline void handle_stop(int received) {
    if (!stop_requested() && stop_answer) {
        const int error = errno;
        [[maybe_unused]] const auto written = write(STDERR_FILENO, stop_answer, std::strlen(stop_answer));
        errno = error;
    }
    stop_signal_received = 1;
    // SLURM's warning may arrive twice, from SLURM and through mpirun, and leaves time for a checkpoint.
    // A terminal's hangup may also arrive twice, from the kernel and from the shell.
    if (received != SIGUSR1 && received != SIGHUP) std::signal(received, SIG_DFL);
}

// flags: those of sigaction. Without SA_RESTART, a signal also interrupts a wait for input.
inline void stop_on(std::initializer_list<int> signals, int flags = SA_RESTART) {
    struct sigaction action = {};
    action.sa_handler = handle_stop;
    action.sa_flags = flags;
    for (const int signal : signals) sigaction(signal, &action, nullptr);
}

// True if SIGHUP was ignored when the program was started, as under nohup. Libraries that MPI loads (UCX,
// to print a stack) catch SIGHUP before main begins, so main cannot see it any more.
bool hangup_was_ignored();

// Call after a stop that ended the current work but not the program: the next signal is a new request.
inline void wait_for_next_stop(std::initializer_list<int> signals) {
    stop_signal_received = 0;
    stop_on(signals, 0);
}

// Answers the first signal with this line, which must be a string literal, if standard error is a
// terminal.
inline void answer_stop(const char* line) {
    if (isatty(STDERR_FILENO)) stop_answer = line;
}
