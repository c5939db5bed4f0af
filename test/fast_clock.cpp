// fast_clock.cpp: a library for LD_PRELOAD that makes the clock run 1000 times as fast until the file
//   FAST_CLOCK_UNTIL exists: whatever a program times until then seems slow, as on a busy machine
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>

namespace {

constexpr long long second = 1'000'000'000;
std::atomic<long long> begin{0}, gained{0};
std::atomic<bool> over{false};

long long shifted(long long now) {
    long long unset = 0;
    begin.compare_exchange_strong(unset, now);
    if (!over) {
        gained = 999 * (now - begin);
        const char* const file = std::getenv("FAST_CLOCK_UNTIL");
        over = !file || access(file, F_OK) == 0;
    }
    return now + gained;
}

}  // namespace

extern "C" int clock_gettime(clockid_t id, timespec* time) noexcept {
    static const auto real =
        reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
    const int error = real(id, time);
    if (error != 0 || id != CLOCK_MONOTONIC) return error;
    const long long now = shifted(time->tv_sec * second + time->tv_nsec);
    time->tv_sec = now / second;
    time->tv_nsec = now % second;
    return 0;
}
