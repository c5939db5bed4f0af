#include "trace.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace software_gpu {
namespace {

std::mutex mutex;  // a thread that writes a checkpoint also makes calls
std::vector<std::string> calls;
std::string refused;
std::atomic<bool> asked_for = false;

std::FILE* file() {
    static std::FILE* const opened = [] {
        const char* const path = std::getenv("SOFTWARE_GPU_TRACE");
        return path ? std::fopen(path, "a") : nullptr;
    }();
    return opened;
}

}  // namespace

bool traces() { return asked_for || file(); }

void trace(const std::string& call) {
    if (call.empty() || !traces()) return;
    const std::lock_guard lock(mutex);
    if (asked_for) calls.push_back(call);
    if (!file()) return;
    fmt::print(file(), "{}\n", call);
    std::fflush(file());
}

std::vector<std::string> take_calls() {
    const std::lock_guard lock(mutex);
    asked_for = true;
    return std::exchange(calls, {});
}

void refuse(const std::string& call) { refused = call; }
bool refuses(const std::string& call) { return refused == call; }

}  // namespace software_gpu
