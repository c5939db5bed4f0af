// communicator_mpi.cpp: processes on CPUs, over MPI.
//   One separate thread makes all MPI calls, so that operations overlap with computation
//   (MPI_THREAD_FUNNELED suffices). It sleeps between polls: MPI's own waits spin, which would take the
//   core on which another process computes.
//   Every pair of processes exchanges data directly. Each process sums its part of the values, in rank
//   order, and sends the sum to the others. So a sum has the same bits on every process, and all_reduce
//   equals reduce_scatter followed by all_gather.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "system/error.h"
#include "trainer/distributed/communicator.h"
#include "trainer/distributed/local_ranks.h"
#include "trainer/distributed/mpi_environment.h"
#include "trainer/distributed/single_process.h"

namespace {

using Clock = std::chrono::steady_clock;

// Size of the pieces of a sum: received values are added while they are in the cache.
constexpr size_t piece_bytes = size_t{1} << 20;
constexpr size_t message_bytes = size_t{256} << 20;  // MPI counts in int

// out (count) = source(0) + source(1) + ... over `sources` arrays, added from left to right in fp32. out
// may be one of the arrays.
template <class T, class Source>
void add_up(T* out, const Source& source, size_t sources, size_t count) {
    constexpr size_t block = 1024;
    float sums[block];
    for (size_t begin = 0; begin < count; begin += block) {
        const size_t n = std::min(block, count - begin);
        for (size_t i = 0; i < n; i++) sums[i] = static_cast<float>(source(0)[begin + i]);
        for (size_t s = 1; s < sources; s++) {
            const T* const values = source(s) + begin;
            for (size_t i = 0; i < n; i++) sums[i] += static_cast<float>(values[i]);
        }
        for (size_t i = 0; i < n; i++) out[begin + i] = static_cast<T>(sums[i]);
    }
}

class Mpi : public Communicator {
public:
    Mpi(const Process& process, double time_limit)
        : Communicator(process, time_limit), thread_([this] { run(); }) {}
    ~Mpi() override {
        std::unique_lock lock(mutex_);
        ending_ = true;
        changed_.notify_all();
        // queued operations have the time limit
        changed_.wait(lock, [&] { return leaving_ || over_; });
        if (!changed_.wait_for(lock, limit_of_meeting(), [&] { return over_; }))
            give_up(process(), no_word("MPI_Finalize"));
        lock.unlock();
        thread_.join();
    }

    // Waits for MPI_Init.
    void meet() {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, limit_of_meeting(), [&] { return ready_ || failure_; }))
            give_up(process(), no_word("MPI_Init"));
        if (failure_) std::rethrow_exception(failure_);
    }

    Ticket begin(const Collective& collective, stream_t) override {
        CHECK(collective.kind == Collective::all_reduce || collective.kind == Collective::broadcast ||
                  collective.count % static_cast<size_t>(size()) == 0,
              "{} elements do not divide into {} parts", collective.count, size());
        const std::lock_guard lock(mutex_);
        queue_.push_back(collective);
        changed_.notify_all();
        return ++begun_;
    }

    void wait(Ticket ticket, stream_t) override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return failure_ || done_ >= ticket; });
        if (failure_) std::rethrow_exception(failure_);
    }

    // The thread stops at its next poll. After that its only MPI call may be MPI_Abort.
    void abort_operations() override {
        std::unique_lock lock(mutex_);
        aborted_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return failure_ != nullptr; });
    }

protected:
    // The thread may be inside MPI, so it aborts at its next poll. If MPI hangs, the launcher ends the
    // other processes when it sees this process's exit code.
    void end_others(int exit_code) override {
        std::unique_lock lock(mutex_);
        abort_code_ = exit_code;
        changed_.notify_all();
        changed_.wait_for(lock, std::chrono::seconds(5), [&] { return over_; });
    }

private:
    size_t parts() const { return static_cast<size_t>(size()); }
    size_t own() const { return static_cast<size_t>(rank()); }

    void run() {
        simt::unpin_this_thread();
        serve();
        const std::lock_guard lock(mutex_);
        over_ = true;
        changed_.notify_all();
    }

    void serve() {
        try {
            int provided = 0;
            MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
            int size = 0, rank = 0;
            MPI_Comm_size(MPI_COMM_WORLD, &size);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            if (size != this->size() || rank != this->rank())
                throw Error(fmt::format(
                    "MPI says process {} of {}, but {} says {} of {}; does mpirun belong to another MPI?",
                    rank, size, process().launcher, this->rank(), this->size()));
            std::unique_lock lock(mutex_);
            ready_ = true;
            changed_.notify_all();
            while (true) {
                changed_.wait(lock,
                              [&] { return abort_code_ >= 0 || aborted_ || ending_ || !queue_.empty(); });
                if (abort_code_ >= 0) break;
                if (aborted_) throw Error(aborted_message);
                if (queue_.empty()) {
                    leaving_ = true;
                    changed_.notify_all();
                    lock.unlock();
                    MPI_Finalize();
                    return;
                }
                const Collective collective = queue_.front();
                queue_.pop_front();
                lock.unlock();
                perform(collective);
                lock.lock();
                done_++;
                changed_.notify_all();
            }
        } catch (...) {
            std::unique_lock lock(mutex_);
            failure_ = std::current_exception();
            changed_.notify_all();
            changed_.wait(lock, [&] { return abort_code_ >= 0 || ending_; });
            // nothing to end: the processes never met, or no abort was requested
            if (abort_code_ < 0) return;
        }
        MPI_Abort(MPI_COMM_WORLD, std::max(1, abort_code_.load()));
    }

    void perform(const Collective& c) {
        switch (c.kind) {
            case Collective::all_reduce:
                if (c.count % parts() == 0 && c.bytes() > piece_bytes / 16) {
                    reduce_scatter(c);
                    all_gather(c);
                } else {
                    all_reduce_small(c);
                }
                break;
            case Collective::reduce_scatter: reduce_scatter(c); break;
            case Collective::all_gather: all_gather(c); break;
            case Collective::broadcast: broadcast(c); break;
        }
    }

    void reduce_scatter(const Collective& c) {
        if (c.element == Collective::bf16)
            reduce_scatter(static_cast<bfloat16*>(c.values), c.count / parts(), "reduce_scatter");
        else reduce_scatter(static_cast<float*>(c.values), c.count / parts(), "reduce_scatter");
    }

    // While one piece is summed, the next one is in flight.
    template <class T>
    void reduce_scatter(T* values, size_t part, const char* what) {
        const size_t piece = std::min(part, piece_bytes / sizeof(T));
        if (part == 0) return;
        for (Transfer& transfer : transfers_)
            transfer.memory.resize(std::max(transfer.memory.size(), (parts() - 1) * piece * sizeof(T)));
        const auto post = [&](size_t index) {
            Transfer& transfer = transfers_[index % 2];
            const size_t begin = index * piece, bytes = std::min(piece, part - begin) * sizeof(T);
            std::byte* slot = transfer.memory.data();
            for (size_t r = 0; r < parts(); r++) {
                if (r == own()) continue;
                receive(transfer, slot, bytes, r);
                send(transfer, values + r * part + begin, bytes, r);
                slot += piece * sizeof(T);
            }
        };
        const size_t pieces = (part + piece - 1) / piece;
        post(0);
        for (size_t index = 0; index < pieces; index++) {
            if (index + 1 < pieces) post(index + 1);
            Transfer& transfer = transfers_[index % 2];
            finish(transfer, what);
            const size_t begin = index * piece;
            const T* slot = reinterpret_cast<const T*>(transfer.memory.data());
            const auto source = [&](size_t r) {
                if (r == own()) return static_cast<const T*>(values + r * part + begin);
                return slot + (r < own() ? r : r - 1) * piece;
            };
            add_up(values + own() * part + begin, source, parts(), std::min(piece, part - begin));
        }
    }

    void all_gather(const Collective& c) {
        const size_t part = c.bytes() / parts();
        std::byte* const values = static_cast<std::byte*>(c.values);
        Transfer& transfer = transfers_[0];
        for (size_t r = 0; r < parts(); r++) {
            if (r == own()) continue;
            receive(transfer, values + r * part, part, r);
            send(transfer, values + own() * part, part, r);
        }
        finish(transfer, "all_gather");
    }

    // For few values, or a number that does not divide by size(): every process sums all of them.
    void all_reduce_small(const Collective& c) {
        if (c.element == Collective::bf16) all_reduce_small(static_cast<bfloat16*>(c.values), c.count);
        else all_reduce_small(static_cast<float*>(c.values), c.count);
    }
    template <class T>
    void all_reduce_small(T* values, size_t count) {
        small_.resize(std::max(small_.size(), parts() * count * sizeof(T)));
        T* const all = reinterpret_cast<T*>(small_.data());
        std::copy_n(values, count, all + own() * count);
        all_gather({Collective::all_gather, all, parts() * count,
                    sizeof(T) == 2 ? Collective::bf16 : Collective::fp32});
        add_up(
            values, [&](size_t r) { return static_cast<const T*>(all + r * count); }, parts(), count);
    }

    void broadcast(const Collective& c) {
        const size_t root = static_cast<size_t>(c.root);
        std::byte* const values = static_cast<std::byte*>(c.values);
        Transfer& transfer = transfers_[0];
        if (own() != root) receive(transfer, values, c.bytes(), root);
        for (size_t r = 0; own() == root && r < parts(); r++) {
            if (r != root) send(transfer, values, c.bytes(), r);
        }
        finish(transfer, "broadcast");
    }

    // ---- messages

    struct Transfer {
        std::vector<MPI_Request> requests;
        std::vector<size_t> ranks;  // rank at the other end of each request
        std::vector<int> indices;
        std::vector<std::byte> memory;
    };

    void receive(Transfer& transfer, void* memory, size_t bytes, size_t from) {
        for (size_t begin = 0; begin < bytes; begin += message_bytes) {
            transfer.requests.emplace_back();
            transfer.ranks.push_back(from);
            MPI_Irecv(static_cast<std::byte*>(memory) + begin,
                      static_cast<int>(std::min(message_bytes, bytes - begin)), MPI_BYTE,
                      static_cast<int>(from), 0, MPI_COMM_WORLD, &transfer.requests.back());
        }
    }
    void send(Transfer& transfer, const void* memory, size_t bytes, size_t to) {
        for (size_t begin = 0; begin < bytes; begin += message_bytes) {
            transfer.requests.emplace_back();
            transfer.ranks.push_back(to);
            MPI_Isend(static_cast<const std::byte*>(memory) + begin,
                      static_cast<int>(std::min(message_bytes, bytes - begin)), MPI_BYTE,
                      static_cast<int>(to), 0, MPI_COMM_WORLD, &transfer.requests.back());
        }
    }

    void finish(Transfer& transfer, const char* what) {
        const Clock::time_point begin = Clock::now();
        auto nap = std::chrono::microseconds(0);
        while (true) {
            // Finished requests become MPI_REQUEST_NULL; once none is left, the count is MPI_UNDEFINED.
            int over = 0;
            transfer.indices.resize(transfer.requests.size());
            MPI_Testsome(static_cast<int>(transfer.requests.size()), transfer.requests.data(), &over,
                         transfer.indices.data(), MPI_STATUSES_IGNORE);
            if (over == MPI_UNDEFINED) break;
            if (abort_code_ >= 0 || aborted_) throw Error(aborted_message);
            if (Clock::now() - begin > std::chrono::duration<double>(time_limit()))
                throw Error(missing(transfer, what));
            std::this_thread::sleep_for(nap);
            nap = std::min(nap + std::chrono::microseconds(10), std::chrono::microseconds(500));
        }
        transfer.requests.clear();
        transfer.ranks.clear();
    }

    std::string missing(const Transfer& transfer, const char* what) const {
        std::set<size_t> ranks;
        for (size_t i = 0; i < transfer.requests.size(); i++) {
            if (transfer.requests[i] != MPI_REQUEST_NULL) ranks.insert(transfer.ranks[i]);
        }
        std::string names;
        for (const size_t rank : ranks) names += (names.empty() ? "rank " : ", ") + std::to_string(rank);
        const std::string idle = idle_ranks(process());
        return fmt::format("no response from {} for {} s (--comm-timeout), in {}{}{}", names, time_limit(),
                           what, idle.empty() ? "" : "; ", idle);
    }

    // MPI takes a second to start, and longer on a busy machine, so the limit is at least 5 s.
    std::chrono::duration<double> limit_of_meeting() const {
        return std::chrono::duration<double>(std::max(time_limit(), 5.0));
    }
    std::string no_word(const char* what) const {
        return fmt::format("no response from the other processes for {} s (--comm-timeout), in {}",
                           limit_of_meeting().count(), what);
    }

    static constexpr const char* aborted_message = "another error ends this process";
    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_.
    std::deque<Collective> queue_;
    Ticket begun_ = 0, done_ = 0;
    bool ready_ = false, ending_ = false, leaving_ = false, over_ = false;
    std::exception_ptr failure_;
    std::atomic<int> abort_code_ = -1;
    std::atomic<bool> aborted_ = false;
    // Used by the thread only.
    Transfer transfers_[2];
    std::vector<std::byte> small_;
    std::thread thread_;  // declared last, because it uses all of the above
};

}  // namespace

// LeakSanitizer calls this at exit: it skips processes that used MPI, since Open MPI leaks memory, and
// still checks all others.
extern "C" int __lsan_is_turned_off() {  // NOLINT(bugprone-reserved-identifier)
    int initialized = 0;
    MPI_Initialized(&initialized);
    return initialized;
}

std::string communicator_library() {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    const std::string text(version, static_cast<size_t>(length));
    return "MPI (" + text.substr(0, text.find_first_of(",\n")) + ")";
}

std::unique_ptr<Communicator> make_communicator(const Process& process, double time_limit) {
    if (process.world_size == 1) return std::make_unique<SingleProcess>(process);
    if (process.launcher == "torchrun")
        throw UsageError(fmt::format(
            "torchrun started {} processes, which on CPUs communicate over MPI; expected mpirun -np {}",
            process.world_size, process.world_size));
    // Otherwise MPI_Init would end the process with a page of text.
    if (process.launcher == "srun" && std::getenv("PMIX_RANK") == nullptr &&
        std::getenv("PMI_RANK") == nullptr)
        throw UsageError(fmt::format(
            "srun started {} processes that MPI cannot connect; expected srun --mpi=pmix, or mpirun -np {}",
            process.world_size, process.world_size));
    use_permitted_copies();
    auto communicator = std::make_unique<Mpi>(process, time_limit);
    communicator->meet();
    return communicator;
}
