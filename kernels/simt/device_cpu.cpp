// device_cpu.cpp: device.h on the CPU. Work given to a stream runs at once, so the stream functions have
//   nothing to wait for.
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include "kernels/simt/device.h"
#include "kernels/simt/target.h"
#include "system/error.h"
#include "system/sanitizer.h"

struct CUevent_st {
    std::chrono::steady_clock::time_point time;
};

namespace simt {
namespace {

constexpr size_t huge_page = size_t{2} << 20;

// The number behind `key` in a file like /proc/meminfo; without a key, the first number. The largest
// size_t if there is no file or no number (such as "max").
size_t number_in(const std::string& file, const std::string& key = "") {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(key)) continue;
        const size_t digit = line.find_first_of("0123456789", key.size());
        if (digit != std::string::npos) return std::strtoull(line.c_str() + digit, nullptr, 10);
    }
    return std::numeric_limits<size_t>::max();
}

std::string processor_name() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    }
    return "CPU";
}

// The folders of this process's control group and of the groups around it, in both versions of the
// interface.
std::vector<std::string> control_groups(const std::string& controller) {
    std::vector<std::string> folders;
    // lines are "number:controllers:/path"; version 2 has no controllers
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first, second - first) + ",";
        const bool version2 = controllers == ":,";
        if (!version2 && controllers.find(controller + ",") == std::string::npos) continue;
        // in a container the group may appear as the root
        for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
            folders.push_back(fmt::format("/sys/fs/cgroup{}{}", version2 ? "" : "/" + controller, path));
            if (path.rfind('/') == std::string::npos) break;
        }
    }
    return folders;
}

// The number of cores whose time the control groups grant, rounded up.
size_t granted_cores() {
    double granted = CPU_SETSIZE;
    for (const std::string& folder : control_groups("cpu")) {
        double quota = 0, period = 0;
        std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" without a limit
        std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;   // -1 without a limit
        std::ifstream(folder + "/cpu.cfs_period_us") >> period;
        if (quota > 0 && period > 0) granted = std::min(granted, std::ceil(quota / period));
    }
    return static_cast<size_t>(std::max(1.0, granted));
}

std::vector<int> cores_in(const cpu_set_t& set) {
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
    return cores;
}

std::vector<int> allowed_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    // With OMP_PROC_BIND the OpenMP library has pinned this thread before main began. Its places are the
    // cores that were allowed then.
    for (int place = 0; place < omp_get_num_places(); place++) {
        std::vector<int> cores(static_cast<size_t>(omp_get_place_num_procs(place)));
        omp_get_place_proc_ids(place, cores.data());
        for (const int core : cores) CPU_SET(core, &set);
    }
    return cores_in(set);
}

// The cores of this process: those it was started with, until select_device restricts them to its share.
std::vector<int>& process_cores() {
    static std::vector<int> cores = allowed_cores();
    return cores;
}

// This is only a hint: a refusal costs speed and nothing else.
void pin_this_thread(const int* cores, size_t count) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t i = 0; i < count; i++) CPU_SET(cores[i], &set);
    pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// Signals are handled by the main thread, which has a stack for that (stop_signal.h). Those that tell of an
// error of this thread are not blocked.
void block_signals_in_this_thread() {
    sigset_t set;
    sigfillset(&set);
    for (const int error : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
        sigdelset(&set, error);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

bool is_gpu() { return false; }

// Each process takes its share of the allowed cores and pins a thread to each core. Without this,
// threads of several processes end up on one core.
void select_device(int local_rank, int local_size) {
    CHECK(local_rank >= 0 && local_rank < local_size, "process {} of {} on this machine; expected 0 to {}",
          local_rank, local_size, local_size - 1);
    static const std::vector<int> allowed = process_cores();  // before anything is pinned
    if (allowed.empty()) return;
    const size_t ranks = static_cast<size_t>(local_size), rank = static_cast<size_t>(local_rank);
    size_t begin = allowed.size() * rank / ranks, end = allowed.size() * (rank + 1) / ranks;
    if (allowed.size() < ranks) begin = rank % allowed.size(), end = begin + 1;
    process_cores().assign(allowed.begin() + static_cast<ptrdiff_t>(begin),
                           allowed.begin() + static_cast<ptrdiff_t>(end));
    const std::vector<int>& cores = process_cores();

    size_t threads = std::min(cores.size(), ceil_div(granted_cores(), ranks));
    if (std::getenv("OMP_NUM_THREADS"))
        threads = std::min(threads, static_cast<size_t>(omp_get_max_threads()));
    omp_set_dynamic(0);
    omp_set_num_threads(static_cast<int>(threads));
    // OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS may give fewer. oneDNN divides a product among as many
    // threads as it expects, and would leave parts of it uncomputed.
#pragma omp parallel
#pragma omp single
    threads = static_cast<size_t>(omp_get_num_threads());
    omp_set_num_threads(static_cast<int>(threads));
#pragma omp parallel
    {
        // With fewer threads than cores, the system knows better which cores are free.
        if (threads == cores.size()) pin_this_thread(&cores[static_cast<size_t>(omp_get_thread_num())], 1);
        else pin_this_thread(cores.data(), cores.size());
        if (omp_get_thread_num() > 0) block_signals_in_this_thread();
    }
}

void unpin_this_thread() { pin_this_thread(process_cores().data(), process_cores().size()); }

DeviceInfo device_info() {
    DeviceInfo info;
    info.multiprocessors = omp_get_max_threads();
    info.name = fmt::format("{}, {} thread{}", processor_name(), info.multiprocessors,
                            info.multiprocessors == 1 ? "" : "s");
    constexpr size_t unlimited = std::numeric_limits<size_t>::max();
    const auto kib = [](size_t n) { return n == unlimited ? n : n * 1024; };
    info.total_memory = kib(number_in("/proc/meminfo", "MemTotal:"));
    info.free_memory = kib(number_in("/proc/meminfo", "MemAvailable:"));
    for (const std::string& folder : control_groups("memory")) {
        const size_t group_limit =
            std::min(number_in(folder + "/memory.max"), number_in(folder + "/memory.limit_in_bytes"));
        const size_t used =
            std::min(number_in(folder + "/memory.current"), number_in(folder + "/memory.usage_in_bytes"));
        if (group_limit == unlimited || used == unlimited) continue;
        // Files that the group has read count as used, but this memory is released when it is needed.
        const size_t files = number_in(folder + "/memory.stat", "inactive_file ");
        const size_t needed = used - std::min(used, files == unlimited ? 0 : files);
        info.total_memory = std::min(info.total_memory, group_limit);
        info.free_memory = std::min(info.free_memory, group_limit - std::min(group_limit, needed));
    }
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        const size_t used = kib(number_in("/proc/self/status", "VmSize:"));
        info.free_memory =
            std::min<size_t>(info.free_memory, limit.rlim_cur - std::min<size_t>(limit.rlim_cur, used));
    }
    return info;
}

void* device_malloc(size_t bytes) {
    if (bytes == 0) return nullptr;
    // Large tensors use huge pages: AdamW over 124M parameters streams through 3.7 GB a step.
    const size_t alignment = bytes >= huge_page ? huge_page : 256;
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        throw Error(fmt::format("out of memory: {} bytes were wanted", bytes));
    if (bytes >= huge_page) madvise(memory, bytes, MADV_HUGEPAGE);
    if (checked) std::memset(memory, 0xff, bytes);
    return memory;
}
void device_free(void* memory) noexcept { std::free(memory); }
void* pinned_malloc(size_t bytes) { return device_malloc(bytes); }
void pinned_free(void* memory) noexcept { device_free(memory); }

void poison_gap(void* memory, size_t bytes) {
    if (checked) asan_poison(memory, bytes);
}
void unpoison_gap(void* memory, size_t bytes) {
    if (checked) asan_unpoison(memory, bytes);
}

stream_t stream_create() { return nullptr; }
void stream_destroy(stream_t) noexcept {}
void stream_synchronize(stream_t) {}

event_t event_create() { return new CUevent_st{}; }
void event_destroy(event_t event) noexcept { delete event; }
void event_record(event_t event, stream_t) { event->time = std::chrono::steady_clock::now(); }
void event_synchronize(event_t) {}
float event_elapsed_ms(event_t start, event_t stop) {
    return std::chrono::duration<float, std::milli>(stop->time - start->time).count();
}

void range_push(const char*) {}
void range_pop() {}

void copy_on_device(void* to, const void* from, size_t bytes, stream_t) {
    if (bytes > 0) std::memcpy(to, from, bytes);  // an empty array may be null, which memcpy forbids
}
void copy_to_device(void* device, const void* host, size_t bytes, stream_t stream) {
    copy_on_device(device, host, bytes, stream);
}
void copy_to_host(void* host, const void* device, size_t bytes, stream_t stream) {
    copy_on_device(host, device, bytes, stream);
}

void fill_zero(void* device, size_t bytes, stream_t) {
    constexpr size_t piece = size_t{1} << 20;
#pragma omp parallel for if (bytes > piece)
    for (size_t begin = 0; begin < bytes; begin += piece)
        std::memset(static_cast<char*>(device) + begin, 0, std::min(piece, bytes - begin));
}

graph_t capture(stream_t, void (*)(const void*), const void*) {
    throw Error("a stream of the CPU runs at once and cannot be captured");
}
void graph_launch(graph_t, stream_t) {}
void graph_destroy(graph_t) noexcept {}

}  // namespace simt
