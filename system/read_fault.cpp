#include "system/read_fault.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <setjmp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <map>

#include "system/printable.h"

namespace {

// Global, because a signal handler has access to nothing else.
struct Mapping {
    size_t bytes;
    std::string path, line;  // line: the beginning of the message
};
using Mappings = std::map<const char*, Mapping>;  // keyed by the address of the first byte
Mappings& mappings() {
    static Mappings* const known = new Mappings;  // never freed: threads may still read files at exit
    return *known;
}
std::atomic_flag locked = ATOMIC_FLAG_INIT;
struct sigaction action_before;

// No mapping is read under the lock, so the handler can only wait for other threads, never for its own.
class Lock {
public:
    Lock() {
        while (locked.test_and_set(std::memory_order_acquire)) {}
    }
    ~Lock() { locked.clear(std::memory_order_release); }
    Lock(const Lock&) = delete;
};

struct Copy {
    sigjmp_buf before;
    volatile std::sig_atomic_t running;
    const char* volatile unreadable;
};
thread_local Copy copying;

[[noreturn]] void end_with_line(const Mapping& mapping, size_t offset) {
    std::array<char, 8192> line;
    size_t size = 0;
    const auto add = [&](std::string_view text) {
        size += text.copy(line.data() + size, line.size() - size);
    };
    char number[32];
    const char* const end = std::to_chars(number, number + sizeof(number), offset).ptr;
    add(mapping.line);
    add({number, end});
    add(": ");
    add(reason_of_read_fault(mapping.path.c_str(), offset));
    add("\n");
    if (write(STDERR_FILENO, line.data(), size) < 0) _exit(1);  // there is no other way to report it
    _exit(1);
}

void on_bus_error(int signal, siginfo_t* info, void*) {
    const bool is_fault = info->si_code > 0;  // false: another process sent the signal
    const char* const at = static_cast<const char*>(info->si_addr);
    if (is_fault && copying.running) {
        copying.unreadable = at;
        siglongjmp(copying.before, 1);
    }
    if (is_fault) {
        const Lock lock;
        const auto after = mappings().upper_bound(at);
        if (after != mappings().begin()) {
            const auto& [begin, mapping] = *std::prev(after);
            const size_t offset = static_cast<size_t>(at - begin);
            if (offset < mapping.bytes) end_with_line(mapping, offset);
        }
    }
    sigaction(SIGBUS, &action_before, nullptr);
    if (!is_fault) raise(signal);  // a fault recurs by itself on return
}

void install_handler() {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // siglongjmp leaves the handler without returning
    sigaction(SIGBUS, &action, &action_before);
}

}  // namespace

void know_mapping(const std::string& path, std::string_view bytes) {
    static const bool installed = (install_handler(), true);
    static_cast<void>(installed);
    Mapping mapping{
        bytes.size(), path,
        fmt::format("{}: {}: cannot be read at byte ", program_invocation_short_name, printable(path))};
    const Lock lock;
    mappings()[bytes.data()] = std::move(mapping);
}

void forget_mapping(std::string_view bytes) {
    const Lock lock;
    mappings().erase(bytes.data());
}

const char* copy_from_mapping(void* to, const char* from, size_t bytes) {
    if (sigsetjmp(copying.before, 0) != 0) {
        copying.running = 0;
        return copying.unreadable;
    }
    copying.running = 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memcpy(to, from, bytes);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    copying.running = 0;
    return nullptr;
}

const char* reason_of_read_fault(const char* path, size_t offset) {
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return strerrordesc_np(errno);
    struct stat now;
    char byte;
    const bool known = fstat(file, &now) == 0;
    const ssize_t read = pread(file, &byte, 1, static_cast<off_t>(offset));
    const int error = errno;
    close(file);
    if (read < 0) return strerrordesc_np(error);
    if (known && static_cast<size_t>(now.st_size) <= offset) return "the file has become shorter";
    return "the system failed to read its page (SIGBUS)";
}
