// stop_signal.h: signals that ask a program to finish its current work and then end.
//   One request often arrives as several signals: `timeout`, torchrun and SLURM signal a process and its
//   group, or a launcher and its processes, and so does Ctrl-C. So equal signals within a second are one
//   request, and so are different ones. The same SIGINT or SIGTERM a second or more later is a person or a
//   system that does not want to wait: it ends the program at once.
#pragma once
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <initializer_list>

// Set by the signal handler, which can only access globals.
inline volatile std::sig_atomic_t stop_signal_received = 0;

// By signal, the time of its latest request, in ms of the monotonic clock; 0: none.
inline std::atomic<int64_t> stop_request_ms[NSIG];
static_assert(std::atomic<int64_t>::is_always_lock_free, "signal handlers need lock-free atomics");

// The handler writes this to stderr at once, since the current work may take seconds to finish.
inline const char* volatile stop_answer = nullptr;

inline bool stop_requested() { return stop_signal_received != 0; }

inline void handle_stop(int received) {
    // Less than a second, because the first signal may have been delivered later after it was sent.
    constexpr int64_t one_request_ms = 950;
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    const int64_t now = int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
    int64_t before = stop_request_ms[received];
    if (before > 0 && now - before < one_request_ms) return;
    // Fails if another thread is handling the same signal at the same time.
    if (!stop_request_ms[received].compare_exchange_strong(before, now)) return;
    // SLURM's warning may arrive again, from SLURM and through mpirun, and leaves time for a checkpoint.
    // A terminal's hangup may also arrive again, from the kernel and from the shell.
    if (before > 0 && stop_requested() && received != SIGUSR1 && received != SIGHUP) {
        std::signal(received, SIG_DFL);
        std::raise(received);  // delivered when the handler returns
        return;
    }
    if (!stop_requested() && stop_answer) {
        const int error = errno;
        [[maybe_unused]] const auto written = write(STDERR_FILENO, stop_answer, std::strlen(stop_answer));
        errno = error;
    }
    stop_signal_received = 1;
}

// Handlers of the calling thread run on a stack of their own from now on, if they ask for it (SA_ONSTACK).
// oneDNN's code for AVX2 keeps data below the stack pointer, farther than the 128 bytes that the system
// spares, so a handler on the same stack would overwrite it: signals during products corrupted the heap.
void give_handlers_a_stack();

// Call in the main thread. flags: those of sigaction. Without SA_RESTART, a signal also interrupts a wait
// for input. The threads that compute leave all signals to the main thread (simt::select_device).
inline void stop_on(std::initializer_list<int> signals, int flags = SA_RESTART) {
    give_handlers_a_stack();
    struct sigaction action = {};
    action.sa_handler = handle_stop;
    action.sa_flags = flags | SA_ONSTACK;
    for (const int signal : signals) sigaction(signal, &action, nullptr);
}

// True if SIGHUP was ignored when the program was started, as under nohup. Libraries that MPI loads (UCX,
// to print a stack) catch SIGHUP before main begins, so main cannot see it any more.
bool hangup_was_ignored();

// Waits until the file can be read, or has ended. False if a signal asked to stop, before the wait or during
// it: a read() alone would miss a signal that comes just before it, and Ctrl-C would have no effect.
bool wait_for_input(int file);

// Call after a stop that ended the current work but not the program: the next request is a new one.
inline void wait_for_next_stop() { stop_signal_received = 0; }

// Answers the first signal with this line, which must be a string literal, if standard error is a
// terminal.
inline void answer_stop(const char* line) {
    if (isatty(STDERR_FILENO)) stop_answer = line;
}
