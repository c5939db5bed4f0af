#include "queues.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "trace.h"

namespace software_gpu {
namespace {

using namespace std::chrono_literals;

// The stream that this thread captures.
thread_local cudaStream_t captured = nullptr;

void merge(Clock& clock, const Clock& other) {
    for (const auto& [stream, count] : other) clock[stream] = std::max(clock[stream], count);
}

bool overlap(const Range& a, const Range& b) {
    return (a.writes || b.writes) && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

}  // namespace

// splitmix64: https://prng.di.unimi.it/splitmix64.c
uint64_t Dice::below(uint64_t count) {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % count;
}

Queues& Queues::instance() {
    static Queues* const queues = [] {
        auto* const made = new Queues(settings().seed);
        std::atexit([] { instance().finish(); });
        return made;
    }();
    return *queues;
}

Queues::Queues(uint64_t seed) : host_dice_(seed), device_dice_(~seed) { default_ = create(); }

// ---- calls that queue work

cudaStream_t Queues::create() {
    const Lock lock(mutex_);
    streams_.push_back(std::make_unique<CUstream_st>());
    streams_.back()->number = created_++;
    return streams_.back().get();
}

// Work queued in the stream is still running.
void Queues::destroy(cudaStream_t stream) {
    const Lock lock(mutex_);
    stream->destroyed = true;
    if (stream->commands.empty() && !stream->busy) {
        if (last_ == stream) last_ = nullptr;
        std::erase_if(streams_, [&](const auto& s) { return s.get() == stream; });
    }
}

void Queues::give(cudaStream_t stream, Command command) {
    trace((captured ? "| " : "") + command.name);
    give(stream, Commands{std::make_shared<const Command>(std::move(command))});
}

void Queues::give(cudaStream_t stream, const Commands& commands) {
    Lock lock(mutex_);
    CUstream_st& s = stream_of(stream);
    if (s.capture) {
        s.capture->commands.insert(s.capture->commands.end(), commands.begin(), commands.end());
        return;
    }
    for (const auto& command : commands) push(s, command);
    run_ahead(lock);
}

void Queues::push(CUstream_st& s, std::shared_ptr<const Command> command) {
    if (!std::exchange(started_, true)) std::thread([this] { work(); }).detach();
    work_given_ += command->work != nullptr;
    merge(s.before, host_);
    check_order(s, *command);
    s.before[s.number] = ++s.given;
    for (const Range& range : command->ranges) uses_.push_back({range, &s, s.number, s.given, command->name});
    s.commands.push_back(std::move(command));
    pending_++;
    activity_++;
    changed_.notify_all();
}

void Queues::check_order(const CUstream_st& s, const Command& command) {
    for (const Range& range : command.ranges) {
        for (const Use& use : uses_) {
            const auto known = s.before.find(use.number);
            if (use.number == s.number || !overlap(range, use.range) ||
                (known != s.before.end() && known->second >= use.index))
                continue;
            stop(Fault(fmt::format(
                "{} and {} touch the same bytes in two streams, one writing, without an event between",
                use.name, command.name)));
        }
    }
}

void Queues::record(cudaEvent_t event, cudaStream_t stream) {
    Lock lock(mutex_);
    CUstream_st& s = stream_of(stream);
    EventState& state = *event->state;
    state.captured_in = s.capture ? s.capture->number : 0;
    if (s.capture) return;
    push(s, std::make_shared<const Command>(
                Command{.name = "an event", .records = event->state, .number = ++state.recorded}));
    state.before = s.before;
    state.work_before = work_given_;
    run_ahead(lock);
}

cudaError_t Queues::wait(cudaStream_t stream, cudaEvent_t event) {
    Lock lock(mutex_);
    CUstream_st& s = stream_of(stream);
    const EventState& state = *event->state;
    if (s.capture) {
        if (state.captured_in == s.capture->number) return cudaSuccess;
        s.capture->broken = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (state.captured_in)
        stop(
            Fault("a stream waits for an event that another captures: a capture of several streams is not "
                  "imitated"));
    if (state.recorded == 0) return cudaSuccess;
    push(s, std::make_shared<const Command>(
                Command{.name = "a wait", .awaits = event->state, .number = state.recorded}));
    merge(s.before, state.before);
    run_ahead(lock);
    return cudaSuccess;
}

// ---- calls that wait

void Queues::host_knows(const Clock& before) {
    merge(host_, before);
    std::erase_if(uses_, [&](const Use& use) {
        const auto known = host_.find(use.number);
        return known != host_.end() && known->second >= use.index;
    });
}

void Queues::synchronize(cudaStream_t stream) {
    Lock lock(mutex_);
    CUstream_st& s = stream_of(stream);
    const Clock before = s.before;
    wait_until(lock, [&] { return s.commands.empty() && !s.busy; });
    host_knows(before);
}

void Queues::synchronize(cudaEvent_t event) {
    Lock lock(mutex_);
    const auto state = event->state;
    const Clock before = state->before;
    const uint64_t number = state->recorded;
    wait_until(lock, [&] { return state->completed >= number; });
    host_knows(before);
}

void Queues::synchronize() {
    Lock lock(mutex_);
    wait_until(lock, [this] { return pending_ == 0; });
    for (const auto& stream : streams_) merge(host_, stream->before);
    uses_.clear();
}

bool Queues::is_over(cudaEvent_t event) {
    const Lock lock(mutex_);
    const EventState& state = *event->state;
    if (state.completed < state.recorded) return false;
    host_knows(state.before);
    return true;
}

bool Queues::work_follows(cudaEvent_t event) {
    const Lock lock(mutex_);
    return work_given_ > event->state->work_before;
}

cudaError_t Queues::elapsed(float* ms, cudaEvent_t start, cudaEvent_t stop) {
    const Lock lock(mutex_);
    const EventState &a = *start->state, &b = *stop->state;
    if (!a.has_time || !b.has_time || a.recorded == 0 || b.recorded == 0)
        return cudaErrorInvalidResourceHandle;
    if (a.completed < a.recorded || b.completed < b.recorded) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(b.time - a.time).count();
    return cudaSuccess;
}

// Half of the time the device is as fast as the host, for several commands in a row.
void Queues::run_ahead(Lock& lock) {
    if (host_dice_.below(32) == 0) eager_ = !eager_;
    if (!eager_ || host_dice_.below(2) == 0 || pending_ == 0) return;
    const uint64_t target = executed_ + 1 + host_dice_.below(pending_);
    wait_until(
        lock, [=, this] { return executed_ >= target; }, false);
}

// Without `patient` it stops waiting if a command waits for other processes, since they may wait for this
// one's host.
void Queues::wait_until(Lock& lock, const std::function<bool()>& done, bool patient) {
    waiters_.push_back(&done);
    activity_++;
    changed_.notify_all();
    while (!done() && !ending_ && (patient || !may_block_)) progressed_.wait_for(lock, 20ms);
    std::erase(waiters_, &done);
}

// ---- captures

cudaError_t Queues::begin_capture(cudaStream_t stream) {
    const Lock lock(mutex_);
    if (captured || stream->capture) return cudaErrorIllegalState;
    stream->capture = std::make_unique<Capture>(Capture{.number = ++captures_});
    captured = stream;
    return cudaSuccess;
}

std::unique_ptr<Commands> Queues::end_capture(cudaStream_t stream) {
    const Lock lock(mutex_);
    const auto capture = std::move(stream->capture);
    captured = nullptr;
    return capture && !capture->broken ? std::make_unique<Commands>(std::move(capture->commands)) : nullptr;
}

cudaStreamCaptureStatus Queues::capture_status(cudaStream_t stream) {
    const Lock lock(mutex_);
    const auto& capture = stream_of(stream).capture;
    return !capture          ? cudaStreamCaptureStatusNone
           : capture->broken ? cudaStreamCaptureStatusInvalidated
                             : cudaStreamCaptureStatusActive;
}

bool Queues::forbidden() {
    if (!captured) return false;
    const Lock lock(mutex_);
    captured->capture->broken = true;
    return true;
}

// ---- the device's thread

bool Queues::is_waited_for() const {
    return std::any_of(waiters_.begin(), waiters_.end(), [](const auto* done) { return !(*done)(); });
}

void Queues::work() {
    Lock lock(mutex_);
    uint64_t idle_since = 0;
    while (true) {
        changed_.wait(lock, [this] { return pending_ > 0 && !ending_; });
        // A GPU runs without the host's waiting, for example while processes exchange messages.
        if (!is_waited_for() && activity_ != idle_since) {
            const uint64_t before = activity_;
            if (changed_.wait_for(lock, 200ms, [&] { return activity_ != before || ending_; })) continue;
            idle_since = before;
        }
        if (!ending_) step(lock);
    }
}

// A stream whose next command may run; often the same as before, so that one stream gets far ahead of
// another.
CUstream_st* Queues::choose() {
    std::vector<CUstream_st*> ready;
    for (const auto& s : streams_) {
        if (s->commands.empty()) continue;
        const Command& next = *s->commands.front();
        if (!next.awaits || next.awaits->completed >= next.number) ready.push_back(s.get());
    }
    if (ready.empty()) stop(Fault("every stream waits for an event, and none will come"));
    const bool stays =
        last_ && std::find(ready.begin(), ready.end(), last_) != ready.end() && device_dice_.below(4) != 0;
    return last_ = stays ? last_ : ready[device_dice_.below(ready.size())];
}

void Queues::step(Lock& lock) {
    CUstream_st* const s = choose();
    const auto command = std::move(s->commands.front());
    s->commands.pop_front();
    if (command->work) {
        s->busy = busy_ = true;
        may_block_ = command->waits_for == WaitsFor::other_processes;
        lock.unlock();
        try {
            const auto running = pause();
            command->work();
        } catch (const Fault& fault) { stop(fault); } catch (const std::exception& error) {
            stop(Fault(fmt::format("{}: {}", command->name, error.what())));
        }
        lock.lock();
        s->busy = busy_ = may_block_ = false;
    }
    if (command->records) {
        command->records->completed = command->number;
        // Two records never have the same time.
        command->records->time = last_time_ = std::max(std::chrono::steady_clock::now(), last_time_ + 1us);
    }
    executed_++;
    pending_--;
    if (s->destroyed && s->commands.empty()) {
        last_ = nullptr;
        std::erase_if(streams_, [&](const auto& stream) { return stream.get() == s; });
    }
    progressed_.notify_all();
}

// At the process's end pending work does not run, and running work ends before variables are destroyed.
void Queues::finish() {
    Lock lock(mutex_);
    ending_ = true;
    progressed_.notify_all();
    progressed_.wait_for(lock, 2s, [this] { return !busy_; });
}

void enqueue(cudaStream_t stream, std::function<void()> work, std::string name, WaitsFor waits_for) {
    Queues::instance().give(
        stream, Command{.name = std::move(name), .work = std::move(work), .waits_for = waits_for});
}

bool is_capturing(cudaStream_t stream) {
    return Queues::instance().capture_status(stream) != cudaStreamCaptureStatusNone;
}

}  // namespace software_gpu
