// stop_signal.h: signals that ask a program to end what is under way and then itself. A second Ctrl-C or SIGTERM ends it at once.
#pragma once
#include <csignal>
#include <initializer_list>

// Set by a signal's handler, which can reach nothing but a global.
inline volatile std::sig_atomic_t stop_signal_received = 0;

inline bool stop_requested() { return stop_signal_received != 0; }

inline void stop_on(std::initializer_list<int> signals) {
    for (const int signal : signals) {
        std::signal(signal, [](int received) {
            stop_signal_received = 1;
            // SLURM's warning may come twice, by SLURM and passed on by mpirun, and leaves time for a checkpoint. So may a terminal's end, by the
            // kernel and by the shell.
            if (received != SIGUSR1 && received != SIGHUP) std::signal(received, SIG_DFL);
        });
    }
}
