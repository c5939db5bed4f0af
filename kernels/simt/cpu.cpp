// cpu.cpp: runs a grid of blocks on CPU cores.
//   Blocks run in parallel (OpenMP). A block of one thread is a function call. The threads of a larger one
//   run on fibers that never leave their OS thread. The first fiber runs one thread after the other, as a
//   plain loop, until a thread meets a barrier; a kernel without barriers never switches fibers. The first
//   thread that meets a barrier keeps the first fiber, every thread that has not run yet gets a fiber of its
//   own, and from then on each thread runs until it waits.
#include "kernels/simt/cpu.h"

#include <fmt/core.h>
#include <omp.h>

#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "kernels/simt/block_memory.h"
#include "kernels/simt/ready_threads.h"
#include "kernels/simt/target.h"
#include "system/error.h"
#include "system/sanitizer.h"

#if defined(__SANITIZE_ADDRESS__)
// AddressSanitizer calls this when the program starts. A frame of a fiber must lie on the fiber's stack,
// and an allocation that fails must throw as in every other build.
extern "C" const char* __asan_default_options() {
    return "detect_stack_use_after_return=0:allocator_may_return_null=1";
}
#endif

namespace simt::cpu {
namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

struct Launch {
    dim3 grid;
    uint32_t block;
    size_t shared_bytes;
    ThreadFunction thread;
    const void* closure;
    OrderSetting order;
};

// Runs blocks, one after the other, on one OS thread. The stacks and the shared memory are kept from launch
// to launch.
class BlockRunner {
public:
    void run(const Launch& launch, dim3 block_index, uint64_t block_number);

    void barrier(bool of_block, Site site) { meet(of_block, site, nullptr); }
    uint64_t shuffle(uint64_t value, uint32_t source, Site site);
    float combine(bool of_block, float value, Combine combine, Site site);
    void together(void* operands, Together together, Site site);
    AsyncCopies& async_copies() {  // those of the running thread
        copies_ = true;
        return async_copies_[running_];
    }
    SharedArrays& shared() { return shared_; }

private:
    enum class State : uint8_t { ready, at_warp, at_block, ended };
    struct Thread;
    using Exchange = void (*)(Thread* threads, uint32_t count);
    struct Thread {
        fcontext_t context = nullptr;  // null before the thread's fiber starts
        std::byte* stack = nullptr;    // its lowest byte
        void* fake_stack = nullptr;    // AddressSanitizer's handle
        State state = State::ready;
        Site site{};                  // where it waits
        Exchange exchange = nullptr;  // called with the values of all threads that met
        Combine combine = nullptr;    // for combine_values
        Together together = nullptr;  // for call_together
        uint32_t source = 0;          // for shuffle_values: the lane whose value it takes
        uint64_t value = 0;           // what it passes to the exchange, then what it gets back
    };

    static void fiber_main(transfer_t from);
    void resume(uint32_t thread);
    void switch_to_scheduler(bool ended);
    void begin_fibers();
    static void forget_frames(std::byte* stack, fcontext_t context);
    void abandon_fibers();
    void meet(bool of_block, Site site, Exchange exchange);
    bool release(uint32_t first, uint32_t count);
    static void shuffle_values(Thread* lanes, uint32_t count);
    static void combine_values(Thread* threads, uint32_t count);
    static void call_together(Thread* lanes, uint32_t count);
    static bool same_meeting(const Thread& a, const Thread& b);
    [[noreturn]] void report_divergence() const;
    std::string describe(uint32_t thread) const;

    const Launch* launch_ = nullptr;
    ReadyThreads ready_;
    uint32_t first_ = 0;                                     // the thread whose stack the first fiber uses
    uint32_t running_ = 0;                                   // the thread that runs or ran last
    bool fibers_ = false;                                    // some thread of this block has met a barrier
    std::exception_ptr error_;                               // thrown by a thread
    std::vector<Thread> threads_{max_block};                 // used when fibers_ is set
    std::array<uint32_t, max_block / warp_size> at_warp_{};  // threads of each warp that wait for it
    uint32_t at_block_ = 0;                                  // threads that wait for the block
    std::vector<AsyncCopies> async_copies_{max_block};
    bool copies_ = false;  // some thread of this block has begun an asynchronous copy

    std::vector<Stack> stacks_ = std::vector<Stack>(max_block);
    fcontext_t scheduler_ = nullptr;
    void* scheduler_fake_stack_ = nullptr;
    const void* scheduler_stack_ = nullptr;
    size_t scheduler_stack_bytes_ = 0;
    SharedArrays shared_;
};

thread_local BlockRunner* running_block = nullptr;  // of this OS thread

BlockRunner& this_block() {
    if (!running_block)
        throw Error("simt: a barrier, a collective or shared memory was used outside a kernel");
    return *running_block;
}

void BlockRunner::run(const Launch& launch, dim3 block_index, uint64_t block_number) {
    struct Running {
        explicit Running(BlockRunner* block) { running_block = block; }
        ~Running() { running_block = nullptr; }
    } running(this);
    launch_ = &launch;
    fibers_ = false;
    if (std::exchange(copies_, false)) {
        for (AsyncCopies& copies : async_copies_) copies.clear();
    }
    gridDim = launch.grid;
    blockDim = dim3(launch.block);
    blockIdx = block_index;
    shared_.prepare(launch.shared_bytes);
    if (launch.block == 1) {  // needs no fiber, because it waits for no other thread
        running_ = 0;
        threadIdx = dim3(0);
        return launch.thread(launch.closure);
    }
    ready_.start(launch.block, launch.order, block_number);

    first_ = ready_.take();
    threads_[first_].context = nullptr;
    resume(first_);  // runs every thread, unless a barrier is met
    while (!error_ && !ready_.empty()) resume(ready_.take());
    // After an error the other fibers are abandoned: kernels own nothing that needs destroying.
    if (error_) {
        abandon_fibers();
        std::rethrow_exception(std::exchange(error_, nullptr));
    }
    if (!fibers_) return;
    for (uint32_t t = 0; t < launch.block; t++) {
        if (threads_[t].state == State::ended) continue;
        abandon_fibers();
        report_divergence();
    }
}

void BlockRunner::fiber_main(transfer_t from) {
    BlockRunner& block = *static_cast<BlockRunner*>(from.data);
    if constexpr (checked) asan_enter_stack(nullptr, &block.scheduler_stack_, &block.scheduler_stack_bytes_);
    block.scheduler_ = from.fctx;
    try {
        block.launch_->thread(block.launch_->closure);
        while (!block.fibers_ && !block.ready_.empty()) {
            block.running_ = block.ready_.take();
            threadIdx = dim3(block.running_);
            block.launch_->thread(block.launch_->closure);
        }
    } catch (...) { block.error_ = std::current_exception(); }
    block.threads_[block.running_].state = State::ended;
    block.switch_to_scheduler(true);
}

void BlockRunner::resume(uint32_t thread) {
    Thread& t = threads_[thread];
    if (!t.context) {
        t.stack = stacks_[thread].bottom();
        // Stacks begin at different cache lines. If all began at the same offset in a page, they would evict
        // each other from the first-level cache.
        const size_t stagger = thread % 64 * cache_line;
        t.context = make_fcontext(t.stack + stack_bytes - stagger, stack_bytes - stagger, &fiber_main);
    }
    running_ = thread;
    threadIdx = dim3(thread);
    if constexpr (checked) asan_leave_stack(&scheduler_fake_stack_, t.stack, stack_bytes);
    const transfer_t back = jump_fcontext(t.context, this);
    if constexpr (checked) asan_enter_stack(scheduler_fake_stack_, nullptr, nullptr);
    threads_[running_].context = back.fctx;  // possibly another thread, which has taken over the first fiber
    if (threads_[running_].state == State::ended) forget_frames(t.stack, back.fctx);
}

// The frames of a fiber that is not resumed never return, so they leave AddressSanitizer's marks on the
// stack, from the current position to the top. Only that part is cleared: clearing the whole stack for
// every fiber took half of the time of checked builds.
void BlockRunner::forget_frames(std::byte* stack, fcontext_t context) {
    const auto* begin = static_cast<const std::byte*>(context);
    asan_unpoison(begin, static_cast<size_t>(stack + stack_bytes - begin));
}

void BlockRunner::abandon_fibers() {
    if (!fibers_) return;
    for (uint32_t t = 0; t < launch_->block; t++) {
        const Thread& thread = threads_[t];
        if (thread.state != State::ended && thread.context) forget_frames(thread.stack, thread.context);
    }
}

void BlockRunner::switch_to_scheduler(bool ended) {
    Thread& t = threads_[running_];
    if constexpr (checked)
        asan_leave_stack(ended ? nullptr : &t.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
    const transfer_t from = jump_fcontext(scheduler_, nullptr);
    if constexpr (checked) asan_enter_stack(t.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
    scheduler_ = from.fctx;
}

// Called when the running thread is the first to meet a barrier. It keeps its fiber; the threads before it
// have ended.
void BlockRunner::begin_fibers() {
    fibers_ = true;
    at_warp_.fill(0);
    at_block_ = 0;
    for (uint32_t t = 0; t < launch_->block; t++) {
        threads_[t].context = nullptr;
        threads_[t].state = ready_.contains(t) ? State::ready : State::ended;
    }
    threads_[running_].stack = threads_[first_].stack;
}

// The running thread waits for the others of its warp or block.
void BlockRunner::meet(bool of_block, Site site, Exchange exchange) {
    if (!of_block && launch_->block < warp_size) {
        throw Error(fmt::format("simt: {} at {}:{} in a block of {} thread; expected whole warps", site.what,
                                site.here.file, site.here.line, launch_->block));
    }
    if (launch_->block == 1) {
        if (exchange) exchange(threads_.data(), 1);
        return;
    }
    if (!fibers_) begin_fibers();
    Thread& t = threads_[running_];
    t.state = of_block ? State::at_block : State::at_warp;
    t.site = site;
    t.exchange = exchange;
    const uint32_t warp = running_ / warp_size;
    if (of_block) {
        if (++at_block_ == launch_->block && release(0, launch_->block)) at_block_ = 0;
    } else {
        if (++at_warp_[warp] == warp_size && release(warp * warp_size, warp_size)) at_warp_[warp] = 0;
    }
    switch_to_scheduler(false);
}

// Makes the `count` threads from `first` ready again, unless they wait at different places.
bool BlockRunner::release(uint32_t first, uint32_t count) {
    Thread* threads = threads_.data() + first;
    for (uint32_t i = 1; i < count; i++) {
        if (!same_meeting(threads[i], threads[0])) return false;
    }
    if (threads[0].exchange) threads[0].exchange(threads, count);
    for (uint32_t i = 0; i < count; i++) threads[i].state = State::ready;
    ready_.add(first, count);
    return true;
}

void BlockRunner::shuffle_values(Thread* lanes, uint32_t) {
    uint64_t given[warp_size];
    for (int i = 0; i < warp_size; i++) given[i] = lanes[i].value;
    for (int i = 0; i < warp_size; i++) lanes[i].value = given[lanes[i].source];
}

void BlockRunner::combine_values(Thread* threads, uint32_t count) {
    std::array<float, max_block> values;
    for (uint32_t i = 0; i < count; i++)
        values[i] = std::bit_cast<float>(static_cast<uint32_t>(threads[i].value));
    threads[0].combine(values.data(), count);
    for (uint32_t i = 0; i < count; i++) threads[i].value = std::bit_cast<uint32_t>(values[i]);
}

uint64_t BlockRunner::shuffle(uint64_t value, uint32_t source, Site site) {
    Thread& t = threads_[running_];
    t.value = value;
    t.source = source;
    meet(false, site, &shuffle_values);
    return t.value;
}

float BlockRunner::combine(bool of_block, float value, Combine combine, Site site) {
    Thread& t = threads_[running_];
    t.value = std::bit_cast<uint32_t>(value);
    t.combine = combine;
    meet(of_block, site, &combine_values);
    return std::bit_cast<float>(static_cast<uint32_t>(t.value));
}

void BlockRunner::call_together(Thread* lanes, uint32_t) {
    void* operands[warp_size];
    for (int i = 0; i < warp_size; i++) operands[i] = std::bit_cast<void*>(lanes[i].value);
    lanes[0].together(operands);
}

void BlockRunner::together(void* operands, Together together, Site site) {
    Thread& t = threads_[running_];
    t.value = std::bit_cast<uint64_t>(operands);
    t.together = together;
    meet(false, site, &call_together);
}

bool BlockRunner::same_meeting(const Thread& a, const Thread& b) {
    const auto same = [](const char* x, const char* y) { return x == y || std::strcmp(x, y) == 0; };
    return a.state == b.state && a.site.here.line == b.site.here.line &&
           same(a.site.here.file, b.site.here.file) && same(a.site.what, b.site.what);
}

// Called when no thread can run and at least one waits: for a thread that has ended or that waits elsewhere.
void BlockRunner::report_divergence() const {
    const auto find = [&](State state) {
        uint32_t t = 0;
        while (t < launch_->block && threads_[t].state != state) t++;
        return t;
    };
    uint32_t waiting = find(State::at_warp);  // more informative than a block that waits for this warp
    const bool of_block = waiting == launch_->block;
    if (of_block) waiting = find(State::at_block);
    uint32_t other = of_block ? 0 : waiting / warp_size * warp_size;
    while (same_meeting(threads_[other], threads_[waiting])) other++;
    throw Error(fmt::format("simt: divergence in block ({}, {}, {}): {}, but {}", blockIdx.x, blockIdx.y,
                            blockIdx.z, describe(waiting), describe(other)));
}

std::string BlockRunner::describe(uint32_t thread) const {
    const Thread& t = threads_[thread];
    if (t.state == State::ended) return fmt::format("thread {} has ended", thread);
    return fmt::format("thread {} waits at {}:{} ({})", thread, t.site.here.file, t.site.here.line,
                       t.site.what);
}

}  // namespace

void warp_barrier(Site site) { this_block().barrier(false, site); }
void block_barrier(Site site) { this_block().barrier(true, site); }
uint64_t warp_shuffle(uint64_t value, unsigned source, Site site) {
    return this_block().shuffle(value, source, site);
}
float warp_combine(float value, Combine combine, Site site) {
    return this_block().combine(false, value, combine, site);
}
float block_combine(float value, Combine combine, Site site) {
    return this_block().combine(true, value, combine, site);
}
void warp_together(void* operands, Together together, Site site) {
    this_block().together(operands, together, site);
}
void async_copy(void* shared, const void* global, size_t bytes, bool inside) {
    this_block().async_copies().begin(shared, global, bytes, inside);
}
void async_commit() { this_block().async_copies().commit(); }
void async_wait(unsigned groups_left) { this_block().async_copies().wait(groups_left); }
void* shared_take(size_t& offset, size_t& taken, size_t padded_bytes, size_t bytes) {
    return this_block().shared().take(offset, taken, padded_bytes, bytes);
}

void check_store(const void* address, bool to_shared) {
    if (!running_block || running_block->shared().contains(address) == to_shared) return;
    throw Error(fmt::format("simt: block ({}, {}, {}), thread {}: {}", blockIdx.x, blockIdx.y, blockIdx.z,
                            threadIdx.x,
                            to_shared ? "store_shared to global memory; expected store"
                                      : "store to shared memory; expected store_shared"));
}
namespace {

// A thread of the team that runs launches.
struct alignas(64) Worker {
    std::atomic<size_t> next;  // of the range of blocks that it begins with
    size_t end;
    alignas(64) BlockRunner runner;  // not beside what the other threads count
};

// One for each thread of a team. All are made by the first launch and kept, because later launches must not
// allocate: not even when a worker that has come too late for every launch so far runs its first block. Only
// the stacks of fibers are mapped later, when a worker first needs them.
std::vector<Worker>& workers() {
    static thread_local std::vector<Worker> of_thread;
    const auto threads = static_cast<size_t>(omp_get_max_threads());
    if (of_thread.size() < threads) of_thread = std::vector<Worker>(threads);
    return of_thread;
}

// Calls run(runner, i) for every i below count, on all threads. Each thread begins with a range of its own,
// which is the same in every launch, so that what it wrote for these rows in the previous launch is still in
// its cache: a step of a small model takes 5 to 10 % less time than with one queue. A thread that has
// finished its range takes from the others', because blocks can differ in cost (causal attention) and
// another program can occupy a core.
template <class Run>
void share_out(size_t count, const Run& run) {
    const auto threads = static_cast<size_t>(omp_get_max_threads());
    Worker* const team = workers().data();
    if (threads == 1) {  // libgomp allocates a team of one thread anew for every region
        for (size_t i = 0; i < count; i++) run(team[0].runner, i);
        return;
    }
    for (size_t t = 0; t < threads; t++) {
        team[t].next.store(count * t / threads, std::memory_order_relaxed);
        team[t].end = count * (t + 1) / threads;
    }
#pragma omp parallel
    {
        const auto own = static_cast<size_t>(omp_get_thread_num());
        for (size_t k = 0; k < threads; k++) {
            Worker& from = team[(own + k) % threads];
            while (true) {
                const size_t i = from.next.fetch_add(1, std::memory_order_relaxed);
                if (i >= from.end) break;
                run(team[own].runner, i);
            }
        }
    }
}

}  // namespace

void run_grid(dim3 grid, unsigned block, size_t shared_bytes, ThreadFunction thread, const void* closure) {
    if (running_block) throw Error("simt: a kernel launches a kernel; only host code can");
    const Launch launch{grid, block, shared_bytes, thread, closure, order_setting()};
    const size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
    const BlockOrder order(launch.order, blocks);
    // The first exception of a block is kept, because it must not leave the parallel region.
    std::exception_ptr error;
    std::atomic<bool> failed = false;
    const auto run_block = [&](BlockRunner& runner, size_t i) {
        if (failed.load(std::memory_order_relaxed)) return;
        const size_t number = order[i];
        const dim3 index(static_cast<unsigned>(number % grid.x),
                         static_cast<unsigned>(number / grid.x % grid.y),
                         static_cast<unsigned>(number / grid.x / grid.y));
        try {
            runner.run(launch, index, number);
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
        }
    };
    if (blocks == 1) run_block(workers()[0].runner, 0);
    else share_out(blocks, run_block);
    if (error) std::rethrow_exception(error);
}

}  // namespace simt::cpu
