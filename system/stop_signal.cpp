#include "system/stop_signal.h"

#include <poll.h>

static bool ignored = false;

// Runs before any library's constructor, since .preinit_array is called first. The sanitizers are not
// initialised yet.
__attribute__((no_sanitize("address", "undefined"))) static void look_at_hangup() {
    struct sigaction action;
    ignored = sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}
[[gnu::section(".preinit_array"), gnu::used]] static void (*const before_all_constructors)() = look_at_hangup;

bool hangup_was_ignored() { return ignored; }

void give_handlers_a_stack() {
    static char memory[size_t{1} << 16];
    stack_t stack = {};
    sigaltstack(nullptr, &stack);
    if (!(stack.ss_flags & SS_DISABLE)) return;  // the address sanitizer has made one
    stack = {.ss_sp = memory, .ss_flags = 0, .ss_size = sizeof(memory)};
    sigaltstack(&stack, nullptr);
}

bool wait_for_input(int file) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pollfd waited = {.fd = file, .events = POLLIN, .revents = 0};
    // Signals are only let through inside ppoll, which they interrupt.
    while (!stop_requested() && ppoll(&waited, 1, nullptr, &before) < 0 && errno == EINTR) continue;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return !stop_requested();
}
