// The CPU's executor: orders of threads and blocks, divergence reports, failing kernels, and the state
// after a launch.
#include <gtest/gtest.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "counted_allocations.h"
#include "kernels/simt/simt.cuh"

using simt::cpu::Order;

namespace {

struct OrderCase {
    Order order;
    uint64_t seed;
};
const OrderCase every_order[] = {{Order::ascending, 0},
                                 {Order::descending, 0},
                                 {Order::shuffled, 1},
                                 {Order::shuffled, 2},
                                 {Order::shuffled, 12345}};

// Restores the order for the next test.
class SimtCpu : public testing::Test {
protected:
    void TearDown() override { simt::cpu::set_order(Order::ascending); }

    template <class Launch>
    static std::string error_of(Launch launch) {
        try {
            launch();
        } catch (const Error& error) { return error.what(); }
        return "";
    }
};

// ---- orders ----

// Every thread reads its left neighbour's value. Without the barrier that is a race, which ascending order
// hides.
template <bool Barrier>
__global__ void left_neighbour_kernel(int* out) {
    simt::SharedMemory shared;
    int* values = shared.take<int>(blockDim.x);
    values[threadIdx.x] = -1;
    __syncthreads();
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (Barrier) __syncthreads();
    out[threadIdx.x] = threadIdx.x == 0 ? 0 : values[threadIdx.x - 1];
}
// Every thread reads the value that the thread one warp further wrote before both had the sum of their
// warp. That sum synchronises a warp and not the block: a warp may be far ahead of the next.
template <bool Barrier>
__global__ void next_warp_kernel(int* out) {
    simt::SharedMemory shared;
    int* values = shared.take<int>(blockDim.x);
    values[threadIdx.x] = -1;
    __syncthreads();
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 3; i++) simt::warp_sum(1.0f);
    if (Barrier) __syncthreads();
    out[threadIdx.x] =
        threadIdx.x + 32 < blockDim.x ? values[threadIdx.x + 32] : static_cast<int>(threadIdx.x);
}
bool right(void (*kernel)(int*), OrderCase order, int offset) {
    constexpr int block = 128;
    simt::cpu::set_order(order.order, order.seed);
    std::vector<int> out(block), expected(block);
    simt::launch(kernel, 1, block, simt::shared_size<int>(block), nullptr, out.data());
    for (int i = 0; i < block; i++)
        expected[static_cast<size_t>(i)] = offset < 0           ? std::max(i + offset, 0)
                                           : i + offset < block ? i + offset
                                                                : i;
    return out == expected;
}

TEST_F(SimtCpu, MissingBarrierIsHiddenByOneOrderAndExposedByTheOthers) {
    EXPECT_TRUE(right(left_neighbour_kernel<false>, {Order::ascending, 0}, -1));
    EXPECT_FALSE(right(left_neighbour_kernel<false>, {Order::descending, 0}, -1));
    for (uint64_t seed = 0; seed < 10; seed++)
        EXPECT_FALSE(right(left_neighbour_kernel<false>, {Order::shuffled, seed}, -1)) << "seed " << seed;
    for (const OrderCase& order : every_order) EXPECT_TRUE(right(left_neighbour_kernel<true>, order, -1));
}
TEST_F(SimtCpu, MissingBarrierBetweenWarpsIsExposedThoughEveryWarpMeets) {
    EXPECT_FALSE(right(next_warp_kernel<false>, {Order::ascending, 0}, 32));
    EXPECT_TRUE(right(next_warp_kernel<false>, {Order::descending, 0}, 32));
    int exposed = 0;
    for (uint64_t seed = 0; seed < 10; seed++)
        exposed += !right(next_warp_kernel<false>, {Order::shuffled, seed}, 32);
    EXPECT_GE(exposed, 3) << "of 10 seeds";
    for (const OrderCase& order : every_order) EXPECT_TRUE(right(next_warp_kernel<true>, order, 32));
}

// The order of the threads between two barriers.
__global__ void trace_kernel(std::vector<int>* trace, bool barrier) {
    if (barrier) __syncthreads();
    trace->push_back(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
}
std::vector<int> trace(OrderCase order, bool barrier, unsigned grid = 1) {
    simt::cpu::set_order(order.order, order.seed);
    std::vector<int> threads;
    const int parallel = omp_get_max_threads();
    omp_set_num_threads(1);
    simt::launch(trace_kernel, grid, 128, 0, nullptr, &threads, barrier);
    omp_set_num_threads(parallel);
    return threads;
}
TEST_F(SimtCpu, OrdersAreWhatTheirNamesSay) {
    std::vector<int> ascending(128);
    std::iota(ascending.begin(), ascending.end(), 0);
    const std::vector<int> descending(ascending.rbegin(), ascending.rend());
    for (const bool barrier : {false, true}) {
        EXPECT_EQ(trace({Order::ascending, 0}, barrier), ascending);
        EXPECT_EQ(trace({Order::descending, 0}, barrier), descending);
        std::set<std::vector<int>> shuffled;
        int turns = 0;
        for (uint64_t seed = 0; seed < 20; seed++) {
            const std::vector<int> threads = trace({Order::shuffled, seed}, barrier);
            EXPECT_EQ(threads, trace({Order::shuffled, seed}, barrier)) << "a seed fixes the order";
            EXPECT_TRUE(
                std::is_permutation(threads.begin(), threads.end(), ascending.begin(), ascending.end()));
            for (size_t i = 1; i < threads.size(); i++) turns += threads[i] / 32 != threads[i - 1] / 32;
            shuffled.insert(threads);
        }
        EXPECT_EQ(shuffled.size(), 20u);
        EXPECT_GT(turns, 20 * 6)
            << "four warps, one after the other, would take 3 turns; mixed they take more";
    }
}
TEST_F(SimtCpu, BlocksAreReorderedToo) {
    const auto blocks = [](OrderCase order) {
        std::vector<int> sequence;
        for (const int thread : trace(order, false, 50)) {
            if (sequence.empty() || sequence.back() != thread / 128) sequence.push_back(thread / 128);
        }
        return sequence;
    };
    std::vector<int> ascending(50);
    std::iota(ascending.begin(), ascending.end(), 0);
    EXPECT_EQ(blocks({Order::ascending, 0}), ascending);
    EXPECT_EQ(blocks({Order::descending, 0}), std::vector<int>(ascending.rbegin(), ascending.rend()));
    std::vector<int> shuffled = blocks({Order::shuffled, 3});
    EXPECT_NE(shuffled, ascending);
    std::sort(shuffled.begin(), shuffled.end());
    EXPECT_EQ(shuffled, ascending);
}

__global__ void nothing_kernel() {}
TEST_F(SimtCpu, OrderFromTheEnvironmentIsNeverGuessed) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    for (const char* value : {"random", "shuffled", "shuffled:", "shuffled:x", "shuffled:1x", "Descending"}) {
        const auto launch = [&] {
            setenv("SIMT_ORDER", value, 1);
            std::fputs(error_of([] { simt::launch(nothing_kernel, 1, 32, 0, nullptr); }).c_str(), stderr);
            std::exit(3);
        };
        EXPECT_EXIT(
            launch(), testing::ExitedWithCode(3),
            std::string("SIMT_ORDER is '") + value + "'; expected ascending, descending or shuffled:SEED");
    }
}

// ---- divergence ----

std::atomic<int> line_a, line_b;  // where the kernels below wait

__global__ void two_barriers_kernel() {
    if (threadIdx.x < 40) {
        line_a = __LINE__ + 1;
        __syncthreads();
    } else {
        line_b = __LINE__ + 1;
        __syncthreads();
    }
}
__global__ void thread_0_ends_kernel() {
    if (threadIdx.x > 0) {
        line_a = __LINE__ + 1;
        __syncthreads();
    }
}
__global__ void thread_0_waits_kernel() {
    if (threadIdx.x == 0) {
        line_a = __LINE__ + 1;
        __syncthreads();
    }
}
__global__ void part_of_a_warp_kernel(float* out) {
    line_b = __LINE__ + 1;
    __syncthreads();
    if (threadIdx.x % 32 < 16) {
        line_a = __LINE__ + 1;
        *out = simt::warp_sum(1.0f);
    }
    line_b = __LINE__ + 1;
    __syncthreads();
}
__global__ void sum_and_shuffle_kernel(float* out) {
    if (threadIdx.x == 33) {
        line_b = __LINE__ + 1;
        *out = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    } else {
        line_a = __LINE__ + 1;
        *out = simt::row_max<32>(1.0f);
    }
}
__global__ void warp_and_block_kernel(float* out) {
    if (threadIdx.x == 3) {
        line_b = __LINE__ + 1;
        *out = simt::block_sum(1.0f);
    } else {
        line_a = __LINE__ + 1;
        __syncwarp();
    }
}
__global__ void late_return_kernel() {
    __syncthreads();
    if (threadIdx.x == 63) return;
    line_a = __LINE__ + 1;
    __syncthreads();
}

__global__ void mma_by_part_of_a_warp_kernel() {
    simt::Vec<float, 4> sums = simt::broadcast<4>(0.0f);
    if (threadIdx.x % 32 < 31) {
        line_a = __LINE__ + 1;
        simt::mma(sums, {}, 0, 0);
    }
}

class Divergence : public SimtCpu {
protected:
    // In every order the report names the block, both threads, and the place where each waits.
    template <class... Arguments>
    static void expect(const std::string& waiting, const std::string& other, void (*kernel)(Arguments...),
                       Arguments... arguments) {
        for (const OrderCase& order : every_order) {
            simt::cpu::set_order(order.order, order.seed);
            const std::string error =
                error_of([&] { simt::launch(kernel, 1, 64, 0, nullptr, arguments...); });
            const auto filled_in = [](std::string text) {
                for (const auto& [name, line] :
                     {std::pair{"{a}", line_a.load()}, std::pair{"{b}", line_b.load()}}) {
                    const size_t place = text.find(name);
                    if (place != std::string::npos)
                        text.replace(place, 3, std::string(__FILE__) + ":" + std::to_string(line));
                }
                return text;
            };
            EXPECT_EQ(error, "simt: divergence in block (0, 0, 0): " + filled_in(waiting) + ", but " +
                                 filled_in(other));
        }
    }
    float out_ = 0;
};

TEST_F(Divergence, ThreadsAtTwoBarriers) {
    expect("thread 0 waits at {a} (__syncthreads)", "thread 40 waits at {b} (__syncthreads)",
           two_barriers_kernel);
}
TEST_F(Divergence, ThreadZeroEndsWhileOthersWait) {
    expect("thread 1 waits at {a} (__syncthreads)", "thread 0 has ended", thread_0_ends_kernel);
}
TEST_F(Divergence, OthersEndWhileThreadZeroWaits) {
    expect("thread 0 waits at {a} (__syncthreads)", "thread 1 has ended", thread_0_waits_kernel);
}
TEST_F(Divergence, ReturnBeforeABarrier) {
    expect("thread 0 waits at {a} (__syncthreads)", "thread 63 has ended", late_return_kernel);
}
TEST_F(Divergence, CollectiveByPartOfAWarp) {
    expect("thread 0 waits at {a} (warp_sum)", "thread 16 waits at {b} (__syncthreads)",
           part_of_a_warp_kernel, &out_);
}
TEST_F(Divergence, MmaByPartOfAWarp) {
    expect("thread 0 waits at {a} (mma)", "thread 31 has ended", mma_by_part_of_a_warp_kernel);
}
TEST_F(Divergence, TwoCollectivesInOneWarp) {
    expect("thread 32 waits at {a} (warp_max)", "thread 33 waits at {b} (__shfl_xor_sync)",
           sum_and_shuffle_kernel, &out_);
}
TEST_F(Divergence, WarpBarrierAgainstBlockCollective) {
    expect("thread 0 waits at {a} (__syncwarp)", "thread 3 waits at {b} (block_sum)", warp_and_block_kernel,
           &out_);
}

__global__ void second_block_diverges_kernel() {
    if (blockIdx.x == 2 && blockIdx.y == 1 && threadIdx.x == 5) return;
    __syncthreads();
}
TEST_F(Divergence, NamesTheBlock) {
    const std::string error =
        error_of([] { simt::launch(second_block_diverges_kernel, dim3(3, 2), 32, 0, nullptr); });
    EXPECT_NE(error.find("divergence in block (2, 1, 0): thread 0 waits at"), std::string::npos) << error;
}

// ---- misuse ----

__global__ void count_kernel(int* count) {
    __syncthreads();
    atomicAdd(count, static_cast<int>(simt::warp_sum(1.0f)) / 32);
}
void expect_next_launch_works() {
    int count = 0;
    simt::launch(count_kernel, 5, 64, 0, nullptr, &count);
    EXPECT_EQ(count, 5 * 64);
}

struct Planted {
    int thread;
};
template <bool Barrier>
__global__ void throwing_kernel(int thrower) {
    if (Barrier) __syncthreads();
    if (static_cast<int>(threadIdx.x) == thrower) throw Planted{thrower};
    if (Barrier) __syncthreads();
}
TEST_F(SimtCpu, WhatAThreadThrowsReachesTheCaller) {
    for (const OrderCase& order : every_order) {
        simt::cpu::set_order(order.order, order.seed);
        for (const int thrower : {0, 1, 40, 63}) {
            for (const auto kernel : {throwing_kernel<false>, throwing_kernel<true>}) {
                try {
                    simt::launch(kernel, 20, 64, 0, nullptr, thrower);
                    ADD_FAILURE() << "nothing was thrown";
                } catch (const Planted& planted) { EXPECT_EQ(planted.thread, thrower); }
                expect_next_launch_works();
            }
        }
    }
}

TEST_F(SimtCpu, DivergenceLeavesTheExecutorUsable) {
    for (int i = 0; i < 10; i++) {
        EXPECT_THROW(simt::launch(late_return_kernel, 3, 64, 0, nullptr), Error);
        expect_next_launch_works();
    }
}

TEST_F(SimtCpu, BarriersAndSharedMemoryNeedAKernel) {
    const std::string expected = "simt: a barrier, a collective or shared memory was used outside a kernel";
    EXPECT_EQ(error_of([] { __syncthreads(); }), expected);
    EXPECT_EQ(error_of([] { simt::warp_sum(1.0f); }), expected);
    EXPECT_EQ(error_of([] { simt::SharedMemory().take<float>(1); }), expected);
    EXPECT_THROW(simt::launch(late_return_kernel, 1, 64, 0, nullptr), Error);
    EXPECT_EQ(error_of([] { __syncthreads(); }), expected) << "after a kernel that failed";
}

__global__ void nested_kernel(unsigned grid) { simt::launch(nothing_kernel, grid, 32, 0, nullptr); }
TEST_F(SimtCpu, KernelsLaunchNoKernels) {
    for (const unsigned grid : {1u, 4u}) {
        EXPECT_EQ(error_of([&] { simt::launch(nested_kernel, grid, 32, 0, nullptr, grid); }),
                  "simt: a kernel launches a kernel; only host code can");
        expect_next_launch_works();
    }
}

__global__ void greedy_kernel(size_t count) {
    simt::SharedMemory shared;
    shared.take<float>(4);
    shared.take<float>(count);
}
TEST_F(SimtCpu, SharedMemoryIsNoMoreThanTheLaunchGave) {
    simt::launch(greedy_kernel, 1, 32, simt::shared_size<float>(4) + simt::shared_size<float>(9), nullptr,
                 size_t{9});
    EXPECT_EQ(error_of([] { simt::launch(greedy_kernel, 1, 32, 48, nullptr, size_t{9}); }),
              "simt: a kernel takes 64 bytes of shared memory, but its launch gave 48");
}

__global__ void partial_mask_kernel() {
    line_a = __LINE__ + 1;
    __shfl_sync(0xffffu, 1, 0);
}
__global__ void warp_sum_kernel() {
    line_a = __LINE__ + 1;
    simt::warp_sum(1.0f);
}
__global__ void row_sum_kernel() {
    line_a = __LINE__ + 1;
    simt::row_sum<64>(1.0f);
}
TEST_F(SimtCpu, MeetingsThatCannotBeProvedAreRefused) {
    const auto at_line = [] { return std::string(" at ") + __FILE__ + ":" + std::to_string(line_a); };
    std::string error = error_of([] { simt::launch(partial_mask_kernel, 1, 32, 0, nullptr); });
    EXPECT_EQ(error, "simt: __shfl_sync with mask 0xffff" + at_line() +
                         "; expected 0xffffffff, all lanes of the warp");
    error = error_of([] { simt::launch(warp_sum_kernel, 1, 1, 0, nullptr); });
    EXPECT_EQ(error, "simt: warp_sum" + at_line() + " in a block of 1 thread; expected whole warps");
    error = error_of([] { simt::launch(row_sum_kernel, 1, 128, 0, nullptr); });
    EXPECT_EQ(error, "simt: block_sum over a row of 64 threads" + at_line() +
                         " in a block of 128; expected one row a block");
}

// ---- asynchronous copies ----

// A value that a thread reads before it waits, or before the barrier after the other thread's wait, is NaN.
// With `begun`, each block waits until all have begun, so that no OpenMP thread runs two of them.
__global__ void impatient_kernel(float* out, const float* inp, std::atomic<unsigned>* begun) {
    if (begun && threadIdx.x == 0) {
        (*begun)++;
        while (*begun < gridDim.x) std::this_thread::yield();
    }
    simt::SharedMemory shared;
    float* copied = shared.take<float>(128);
    copied[threadIdx.x] = 0.0f;
    simt::cp_async<1>(copied + threadIdx.x, inp + threadIdx.x, true);
    simt::cp_async_commit();
    out[threadIdx.x] = copied[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) simt::cp_async_wait<0>();
    __syncthreads();
    out[64 + threadIdx.x] = copied[threadIdx.x];
    simt::cp_async<1>(copied + 64 + threadIdx.x, inp + threadIdx.x, true);
    simt::cp_async_wait<0>();  // the copy's group is not yet committed, so this does not wait for it
    out[128 + threadIdx.x] = copied[64 + threadIdx.x];
}
TEST_F(SimtCpu, CopiesAreNaNUntilTheirThreadWaits) {
    const std::vector<float> inp(64, 5.0f);
    std::vector<float> out(192);
    for (const OrderCase& order : every_order) {
        simt::cpu::set_order(order.order, order.seed);
        std::fill(out.begin(), out.end(), 0.0f);
        simt::launch(impatient_kernel, 2, 64, simt::shared_size<float>(128), nullptr, out.data(), inp.data(),
                     nullptr);
        for (size_t i = 0; i < 64; i++) {
            EXPECT_TRUE(std::isnan(out[i])) << i;
            EXPECT_TRUE(i < 32 ? out[64 + i] == 5.0f : std::isnan(out[64 + i])) << i;
            EXPECT_TRUE(std::isnan(out[128 + i])) << i;
        }
    }
}

// ---- launches beside each other, and one after the other ----

TEST_F(SimtCpu, HostThreadsLaunchIndependently) {
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int t = 0; t < 3; t++) {
        threads.emplace_back([&] {
            for (int i = 0; i < 50; i++) {
                int count = 0;
                simt::launch(count_kernel, 4, 64, 0, nullptr, &count);
                right += count == 4 * 64;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, 150);
}

TEST_F(SimtCpu, SteadyStateAllocatesNothing) {
    std::vector<int> out(128);
    const std::vector<float> inp(64, 5.0f);
    std::vector<float> copied(192);
    const auto copy = [&](unsigned blocks, std::atomic<unsigned>* begun) {
        simt::launch(impatient_kernel, blocks, 64, simt::shared_size<float>(128), nullptr, copied.data(),
                     inp.data(), begun);
    };
    const auto launches = [&] {
        int count = 0;
        simt::launch(nothing_kernel, 100, 256, 0, nullptr);
        simt::launch(count_kernel, 24, 1024, 0, nullptr, &count);
        simt::launch(left_neighbour_kernel<true>, 1, 128, simt::shared_size<int>(128), nullptr, out.data());
        copy(24, nullptr);
    };
    launches();
    unsigned team = 0;
#pragma omp parallel
#pragma omp single
    team = static_cast<unsigned>(omp_get_num_threads());
    std::atomic<unsigned> begun = 0;
    copy(team, &begun);  // every OpenMP thread has made copies now
    const size_t before = allocations;
    for (int i = 0; i < 20; i++) launches();
    EXPECT_EQ(allocations - before, 0u);
}

// ---- cores ----

std::vector<int> cores_of_this_thread() {
    cpu_set_t set;
    CPU_ZERO(&set);
    pthread_getaffinity_np(pthread_self(), sizeof(set), &set);
    std::vector<int> cores;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
    return cores;
}
class Cores : public testing::Test {
protected:
    void TearDown() override { simt::select_device(); }
    static std::vector<int> of_the_background() {
        std::vector<int> cores;
        std::thread([&] {
            simt::unpin_this_thread();
            cores = cores_of_this_thread();
        }).join();
        return cores;
    }
};

TEST_F(Cores, ThreadsOfOneProcessAreApart) {
    simt::select_device();
    const std::vector<int> all = of_the_background();
    const int threads = omp_get_max_threads();
    ASSERT_GE(threads, 1);
    ASSERT_LE(static_cast<size_t>(threads), all.size());
    std::vector<std::vector<int>> cores(static_cast<size_t>(threads));
#pragma omp parallel
    cores[static_cast<size_t>(omp_get_thread_num())] = cores_of_this_thread();
    if (static_cast<size_t>(threads) == all.size()) {
        for (size_t t = 0; t < cores.size(); t++) EXPECT_EQ(cores[t], std::vector<int>{all[t]});
    } else {
        for (const std::vector<int>& set : cores) EXPECT_EQ(set, all);
    }
}
// The environment may allow fewer threads than there are cores. Libraries divide their work among
// omp_get_max_threads().
TEST_F(Cores, ThreadsThatOpenMPDoesNotGiveAreNotExpected) {
    const int levels = omp_get_max_active_levels();
    omp_set_max_active_levels(0);
    simt::select_device();
    EXPECT_EQ(omp_get_max_threads(), 1);
    EXPECT_EQ(cores_of_this_thread(), of_the_background()) << "the system chooses a free core";
    omp_set_max_active_levels(levels);
}
TEST_F(Cores, ProcessesShareTheCores) {
    simt::select_device();
    const std::vector<int> all = of_the_background();
    for (const int processes : {1, 2, 3, 8}) {
        std::vector<int> taken;
        for (int rank = 0; rank < processes; rank++) {
            simt::select_device(rank, processes);
            const std::vector<int> share = of_the_background();
            ASSERT_FALSE(share.empty());
            EXPECT_LE(static_cast<size_t>(omp_get_max_threads()), share.size());
            taken.insert(taken.end(), share.begin(), share.end());
        }
        if (all.size() >= static_cast<size_t>(processes)) {
            EXPECT_EQ(taken, all) << "every core belongs to one process";
        }
    }
    EXPECT_THROW(simt::select_device(2, 2), UsageError);
}

}  // namespace
