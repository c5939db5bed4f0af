// communicator_nccl.cpp: one process a GPU, over NCCL.
//   NCCL's calls, and waits for the GPU, may block forever when another process is missing. So the
//   communicator may block anywhere, and a watchdog thread ends the process with one line when NCCL
//   reports an error or an operation exceeds the time limit.
//   The watchdog does not use ncclCommAbort: aborted operations look finished, and the main thread would
//   continue with undefined data. Only abort_operations() calls it, after an error of the main thread that
//   ends the process.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "system/error.h"
#include "trainer/distributed/bootstrap.h"
#include "trainer/distributed/communicator.h"
#include "trainer/distributed/local_ranks.h"
#include "trainer/distributed/single_process.h"

namespace {

using Clock = std::chrono::steady_clock;

void check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // clears the error, as in device_cuda.cpp
    throw Error(fmt::format("CUDA: {}: {}", what, cudaGetErrorString(status)));
}

std::string describe(ncclResult_t result) {
    const std::string detail = ncclGetLastError(nullptr);
    if (detail.find("Duplicate GPU") != std::string::npos)
        return fmt::format(
            "two processes use one GPU; expected no more processes than GPUs on each machine, and a "
            "different GPU for each in CUDA_VISIBLE_DEVICES if that is set (NCCL: {})",
            detail);
    if (detail.find("Mismatched NCCL version") != std::string::npos)
        return fmt::format(
            "the processes have different versions of NCCL; expected the same on all machines (NCCL: {})",
            detail);
    return fmt::format("NCCL: {}{}{}", ncclGetErrorString(result), detail.empty() ? "" : ": ", detail);
}

void check(ncclResult_t result) {
    if (result != ncclSuccess) throw Error(describe(result));
}

ncclDataType_t type_of(Collective::Element element) {
    return element == Collective::fp32 ? ncclFloat32 : element == Collective::bf16 ? ncclBfloat16 : ncclUint8;
}

const char* name_of(Collective::Kind kind) {
    switch (kind) {
        case Collective::all_reduce: return "all_reduce";
        case Collective::reduce_scatter: return "reduce_scatter";
        case Collective::all_gather: return "all_gather";
        default: return "broadcast";
    }
}

// Polls waiting_for(), which names what the process waits for, or "" for nothing. An answer that stays
// the same for longer than the time limit, or an Error, ends the process.
class Watchdog {
public:
    Watchdog(const Process& process, double time_limit, std::function<std::string()> waiting_for)
        : process_(process), waiting_for_(std::move(waiting_for)), time_limit_(time_limit) {
        check(cudaGetDevice(&device_), "asking for the GPU");
        thread_ = std::thread([this] { run(); });
    }
    ~Watchdog() {
        {
            const std::lock_guard lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    // Call after an error of the main thread that ends the process: limits every wait to this many
    // seconds.
    void allow_at_most(double seconds) {
        const std::lock_guard lock(mutex_);
        time_limit_ = std::min(time_limit_, std::chrono::duration<double>(seconds));
        ends_after_error_ = true;
    }

private:
    void run() {
        cudaSetDevice(device_);  // a new thread uses the first GPU by default
        // While another thread captures a graph, CUDA refuses event queries from threads in another mode.
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&mode);
        std::string before;
        Clock::time_point since = Clock::now();
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return ending_; })) {
            try {
                std::string now = waiting_for_();
                if (now != before || now.empty()) {
                    since = Clock::now();
                    before = std::move(now);
                }
            } catch (const std::exception& error) { end_process(process_, error.what()); }
            if (Clock::now() - since <= time_limit_) continue;
            const std::string late =
                fmt::format("{} has not finished for {:g} s", before, time_limit_.count());
            if (ends_after_error_) end_process(process_, late + ", after an error of this process");
            give_up(process_, late + " (--comm-timeout); another process has ended, hangs or is that slow");
        }
    }

    const Process process_;
    const std::function<std::string()> waiting_for_;
    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_.
    std::chrono::duration<double> time_limit_;
    bool ending_ = false, ends_after_error_ = false;
    int device_ = 0;
    std::thread thread_;
};

class Nccl : public Communicator {
public:
    Nccl(const Process& process, double time_limit)
        : Communicator(process, time_limit),
          watchdog_(process, time_limit, [this] { return waiting_for(); }) {
        const Call call(*this, fmt::format("meeting the other {} processes", size() - 1));
        const ncclUniqueId id = unique_id(process);
        int least = 0, greatest = 0;
        check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities of streams");
        // The highest priority, so that a collective runs beside the backward pass instead of after it.
        check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "creating a stream");
        for (Operation& operation : operations_) {
            check(cudaEventCreateWithFlags(&operation.ready, cudaEventDisableTiming), "creating an event");
            check(cudaEventCreateWithFlags(&operation.done, cudaEventDisableTiming), "creating an event");
        }
        ncclComm_t comm = nullptr;
        check(ncclCommInitRank(&comm, size(), id, rank()));
        const std::lock_guard lock(mutex_);
        comm_ = comm;
    }

    ~Nccl() override {
        // After an error the other processes may never join; otherwise they may still need data from this
        // one.
        if (std::uncaught_exceptions() > 0) abort_operations();
        if (ncclComm_t comm = take_comm()) {
            const Call call(*this, "leaving the other processes");
            ncclCommFinalize(comm);
            ncclCommDestroy(comm);
        }
        for (const Operation& operation : operations_) {
            cudaEventDestroy(operation.ready);
            cudaEventDestroy(operation.done);
        }
        cudaStreamDestroy(stream_);
    }

    Ticket begin(const Collective& collective, stream_t stream) override {
        CHECK(collective.kind == Collective::all_reduce || collective.kind == Collective::broadcast ||
                  collective.count % static_cast<size_t>(size()) == 0,
              "{} elements do not divide into {} parts", collective.count, size());
        check_in_use();
        if (collective.count == 0) return begun_;
        const Ticket ticket = begun_ + 1;
        Operation& operation = free_operation(ticket);
        check(cudaEventRecord(operation.ready, stream), "recording an event");
        check(cudaStreamWaitEvent(stream_, operation.ready), "waiting for an event");
        {
            const Call call(*this, what(ticket, collective));
            check(enqueue(collective));
        }
        check(cudaEventRecord(operation.done, stream_), "recording an event");
        const std::lock_guard lock(mutex_);
        operation.collective = collective;
        begun_ = ticket;
        return ticket;
    }

    void wait(Ticket ticket, stream_t stream) override {
        check_in_use();
        // a newer operation has its place, and waited for its end
        if (ticket == 0 || ticket + operations_.size() <= begun_) return;
        check(cudaStreamWaitEvent(stream, operation_of(ticket).done), "waiting for an event");
    }

    // Ends kernels that wait for other processes, and so the streams that wait for these kernels.
    void abort_operations() override {
        ncclComm_t comm = take_comm();
        if (comm == nullptr) return;
        watchdog_.allow_at_most(10);
        const Call call(*this, "ncclCommAbort");
        ncclCommAbort(comm);
    }

protected:
    // The launcher ends them when it sees this process's exit code.
    void end_others(int) override {}

private:
    struct Operation {
        cudaEvent_t ready = nullptr, done = nullptr;
        Collective collective{};
    };

    // The scope of a call that may block; the watchdog measures its time.
    class Call {
    public:
        Call(Nccl& nccl, std::string what) : nccl_(nccl) { set(std::move(what)); }
        ~Call() { set(""); }
        Call(const Call&) = delete;
        Call& operator=(const Call&) = delete;

    private:
        void set(std::string what) {
            const std::lock_guard lock(nccl_.mutex_);
            nccl_.call_ = std::move(what);
        }
        Nccl& nccl_;
    };

    // After this the watchdog neither polls NCCL for errors nor waits for operations.
    ncclComm_t take_comm() {
        const std::lock_guard lock(mutex_);
        finished_ = begun_;
        return std::exchange(comm_, nullptr);
    }

    void check_in_use() const {
        if (comm_ == nullptr) throw Error("NCCL: another error ends this process");
    }

    Operation& operation_of(Ticket ticket) { return operations_[ticket % operations_.size()]; }

    // If all places are taken, waits until the oldest operation has finished and returns its place.
    Operation& free_operation(Ticket ticket) {
        Operation& operation = operation_of(ticket);
        if (ticket <= operations_.size()) return operation;
        const Ticket before = ticket - operations_.size();
        std::unique_lock lock(mutex_);
        if (finished_ >= before) return operation;
        lock.unlock();
        check(cudaEventSynchronize(operation.done), "waiting for an event");
        lock.lock();
        finished_ = std::max(finished_, before);
        return operation;
    }

    ncclResult_t enqueue(const Collective& c) {
        const ncclDataType_t type = type_of(c.element);
        const size_t part = c.count / static_cast<size_t>(size());
        std::byte* const own_part =
            static_cast<std::byte*>(c.values) + static_cast<size_t>(rank()) * part * c.element_bytes();
        switch (c.kind) {
            case Collective::all_reduce:
                return ncclAllReduce(c.values, c.values, c.count, type, ncclSum, comm_, stream_);
            case Collective::reduce_scatter:
                return ncclReduceScatter(c.values, own_part, part, type, ncclSum, comm_, stream_);
            case Collective::all_gather: return ncclAllGather(own_part, c.values, part, type, comm_, stream_);
            default: return ncclBroadcast(c.values, c.values, c.count, type, c.root, comm_, stream_);
        }
    }

    static std::string what(Ticket ticket, const Collective& c) {
        return fmt::format("operation {}, {} of {} bytes,", ticket, name_of(c.kind), c.bytes());
    }

    // Called by the watchdog's thread.
    std::string waiting_for() {
        const std::lock_guard lock(mutex_);
        ncclResult_t state = ncclSuccess;
        if (comm_ != nullptr && ncclCommGetAsyncError(comm_, &state) == ncclSuccess && state != ncclSuccess &&
            state != ncclInProgress)
            throw Error(describe(state));
        if (!call_.empty()) return call_;
        while (finished_ < begun_ && is_over(operation_of(finished_ + 1).done)) finished_++;
        if (finished_ == begun_) return "";
        // The time limit runs from when this process is ready for the operation.
        const Operation& operation = operation_of(finished_ + 1);
        return is_over(operation.ready) ? what(finished_ + 1, operation.collective) : "";
    }

    static bool is_over(cudaEvent_t event) {
        const cudaError_t status = cudaEventQuery(event);
        if (status != cudaErrorNotReady) check(status, "asking for an event");
        return status == cudaSuccess;
    }

    cudaStream_t stream_ = nullptr;
    std::array<Operation, 256> operations_;  // more than one backward pass begins
    std::mutex mutex_;
    // Guarded by mutex_, for the watchdog; only the owner's thread begins operations.
    ncclComm_t comm_ = nullptr;
    std::string call_;
    Ticket begun_ = 0, finished_ = 0;
    Watchdog watchdog_;  // declared last, because it uses all of the above
};

}  // namespace

std::string communicator_library() {
    int version = 0;
    ncclGetVersion(&version);
    return fmt::format("NCCL {}", nccl_version(version));
}

std::unique_ptr<Communicator> make_communicator(const Process& process, double time_limit) {
    if (process.launcher.empty()) return std::make_unique<SingleProcess>(process);
    return std::make_unique<Nccl>(process, time_limit);
}
