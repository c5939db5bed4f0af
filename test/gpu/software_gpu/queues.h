// queues.h: the software GPU's streams, events and graphs.
//   A stream is a queue of commands. A thread of the device runs them one at a time, and only while the host
//   waits: the seed chooses among the streams whose next command may run, and whether the device runs ahead
//   of the host's next wait or falls behind it. So a missing event shows as a wrong result of some seed, the
//   same in each run. Copies and fills of two streams that touch the same bytes without an event between are
//   found under every seed.
#pragma once
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stream.h"

namespace software_gpu {

// For each stream's number: the number of its commands before a point of the program.
using Clock = std::map<unsigned, uint64_t>;

struct EventState {
    uint64_t recorded = 0, completed = 0;  // how often, by the host's order and by the device's
    uint64_t captured_in = 0;              // the capture that recorded it last; 0: none
    bool has_time = true;
    std::chrono::steady_clock::time_point time;
    Clock before;  // of its last record
    uint64_t work_before = 0;
};

// Bytes that a copy or fill touches.
struct Range {
    const std::byte* begin;
    size_t bytes;
    bool writes;
};

struct Command {
    std::string name;
    std::function<void()> work = nullptr;
    WaitsFor waits_for = WaitsFor::nobody;
    std::vector<Range> ranges = {};
    std::shared_ptr<EventState> records = nullptr, awaits = nullptr;
    uint64_t number = 0;  // of the event's record
};
using Commands = std::vector<std::shared_ptr<const Command>>;

struct Capture {
    uint64_t number;
    Commands commands = {};
    bool broken = false;
};

// A generator of the same numbers everywhere.
class Dice {
public:
    explicit Dice(uint64_t seed) : state_(seed) {}
    uint64_t below(uint64_t count);

private:
    uint64_t state_;
};

}  // namespace software_gpu

struct CUstream_st {
    unsigned number = 0;
    std::deque<std::shared_ptr<const software_gpu::Command>> commands = {};
    bool busy = false, destroyed = false;
    uint64_t given = 0;
    software_gpu::Clock before = {};  // of the next command
    std::unique_ptr<software_gpu::Capture> capture = nullptr;
};
struct CUevent_st {
    std::shared_ptr<software_gpu::EventState> state = std::make_shared<software_gpu::EventState>();
};
struct CUgraph_st {
    software_gpu::Commands commands;
};
struct CUgraphExec_st {
    software_gpu::Commands commands;
};

namespace software_gpu {

class Queues {
public:
    // Never to be destroyed: the device's thread may outlive main.
    explicit Queues(uint64_t seed);
    static Queues& instance();

    cudaStream_t create();
    void destroy(cudaStream_t stream);
    void give(cudaStream_t stream, Command command);
    void give(cudaStream_t stream, const Commands& commands);
    void record(cudaEvent_t event, cudaStream_t stream);
    cudaError_t wait(cudaStream_t stream, cudaEvent_t event);

    void synchronize(cudaStream_t stream);
    void synchronize(cudaEvent_t event);
    void synchronize();
    bool is_over(cudaEvent_t event);
    // True if work was given to any stream after the event's last record.
    bool work_follows(cudaEvent_t event);
    cudaError_t elapsed(float* ms, cudaEvent_t start, cudaEvent_t stop);

    // Held while the device's allocations change: no command runs.
    [[nodiscard]] std::unique_lock<std::mutex> pause() { return std::unique_lock(running_); }

    cudaError_t begin_capture(cudaStream_t stream);
    // The commands in it, or nullptr if the capture is broken.
    std::unique_ptr<Commands> end_capture(cudaStream_t stream);
    cudaStreamCaptureStatus capture_status(cudaStream_t stream);
    // True if this thread captures; the calling function is then illegal, and the capture becomes invalid.
    bool forbidden();

private:
    using Lock = std::unique_lock<std::mutex>;
    // A copy or fill that the host has not yet waited for.
    struct Use {
        Range range;
        cudaStream_t stream;
        unsigned number;
        uint64_t index;
        std::string name;
    };

    CUstream_st& stream_of(cudaStream_t stream) { return stream ? *stream : *default_; }
    void push(CUstream_st& stream, std::shared_ptr<const Command> command);
    void check_order(const CUstream_st& stream, const Command& command);
    void host_knows(const Clock& before);
    void run_ahead(Lock& lock);
    void wait_until(Lock& lock, const std::function<bool()>& done, bool patient = true);
    bool is_waited_for() const;
    void work();
    void step(Lock& lock);
    CUstream_st* choose();
    void finish();

    std::mutex running_;  // held while a command runs; taken before mutex_
    std::mutex mutex_;    // guards everything below
    std::condition_variable changed_, progressed_;
    std::vector<std::unique_ptr<CUstream_st>> streams_;
    CUstream_st* default_;
    CUstream_st* last_ = nullptr;
    unsigned created_ = 0;
    uint64_t captures_ = 0, executed_ = 0, pending_ = 0, activity_ = 0, work_given_ = 0;
    std::vector<const std::function<bool()>*> waiters_;
    std::vector<Use> uses_;
    Clock host_;
    Dice host_dice_, device_dice_;
    bool eager_ = false, started_ = false, ending_ = false, busy_ = false, may_block_ = false;
    std::chrono::steady_clock::time_point last_time_;
};

}  // namespace software_gpu
