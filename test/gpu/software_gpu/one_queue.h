// one_queue.h: the software GPU for the tests of one replaced library: a single queue of work, which runs
// when a test calls for it. It defines the functions of stream.h in place of queues.cpp and
// cuda_runtime.cpp, so it is included by one file of a program.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <deque>
#include <memory>
#include <utility>

#include "stream.h"

struct Gpu {
    software_gpu::Memory memory;
    software_gpu::Settings settings;
    std::deque<std::function<void()>> queue;
    software_gpu::WaitsFor waits_for = software_gpu::WaitsFor::nobody;  // expected of all work
    int device = 0;

    void run() {
        while (!queue.empty()) {
            const auto work = std::move(queue.front());
            queue.pop_front();
            work();
        }
    }
};
inline std::unique_ptr<Gpu> gpu;

namespace software_gpu {

const Settings& settings() { return gpu->settings; }
Memory& device_memory() { return gpu->memory; }
void enqueue(cudaStream_t, std::function<void()> work, std::string name, WaitsFor waits_for) {
    if (waits_for != gpu->waits_for)
        stop(Fault(name + " was given to a stream with another WaitsFor than is expected"));
    gpu->queue.push_back(std::move(work));
}
void stop(const std::exception& fault) {
    fmt::print(stderr, "software GPU: {}\n", fault.what());
    _exit(86);
}

}  // namespace software_gpu
