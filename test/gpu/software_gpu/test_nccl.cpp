// nccl.cpp between processes: every collective against its expected result, and the errors that end ranks
// which do not agree. The streams are a list of work that runs when a test calls for it. Each rank is a
// child process of the test.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "one_queue.h"

extern "C" cudaError_t cudaGetDevice(int* device) { return *device = gpu->device, cudaSuccess; }
extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t) { return gpu->run(), cudaSuccess; }

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// One rank, in a process of its own.
struct Rank {
    int rank, size;
    ncclUniqueId id;
    ncclComm_t comm = nullptr;

    std::byte* allocate(size_t bytes) const { return static_cast<std::byte*>(gpu->memory.allocate(bytes)); }
    std::byte* written(size_t bytes) const {
        std::byte* const memory = allocate(bytes);
        gpu->memory.note_write(memory, bytes, "the test");
        return memory;
    }
    ncclResult_t join() { return ncclCommInitRank(&comm, size, id, rank); }
    std::string leave() const {
        if (ncclCommFinalize(comm) != ncclSuccess || ncclCommDestroy(comm) != ncclSuccess)
            return "it did not leave";
        return "";
    }
    // The message of the finding when the queue runs.
    static std::string fault() {
        try {
            gpu->run();
        } catch (const software_gpu::Fault& found) { return found.what(); }
        return "";
    }
    ncclResult_t state() const {
        ncclResult_t result = ncclSuccess;
        ncclCommGetAsyncError(comm, &result);
        return result;
    }
};
std::string difference(const std::string& value, const std::string& expected) {
    return value == expected ? "" : fmt::format("\"{}\" instead of \"{}\"", value, expected);
}

// Runs the body in a process for each rank, and returns the result of each: "" for success, "signal 9" if
// it was killed.
std::vector<std::string> in_processes(int size, const std::function<std::string(Rank&)>& body) {
    ncclUniqueId id{};
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::pair<pid_t, int>> children;
    for (int rank = 0; rank < size; rank++) {
        int ends[2];
        if (pipe(ends) != 0) throw std::runtime_error("pipe");
        const pid_t child = fork();
        if (child == 0) {
            std::string text;
            try {
                gpu = std::make_unique<Gpu>();
                gpu->waits_for = software_gpu::WaitsFor::other_processes;
                gpu->device = rank;
                Rank self{rank, size, id};
                text = body(self);
            } catch (const std::exception& error) { text = fmt::format("exception: {}", error.what()); }
            const auto sent = write(ends[1], text.data(), text.size());
            _exit(sent < 0);
        }
        close(ends[1]);
        children.emplace_back(child, ends[0]);
    }
    std::vector<std::string> results;
    for (const auto& [child, from] : children) {
        std::string text(4096, '\0');
        size_t length = 0;
        for (ssize_t got; (got = read(from, text.data() + length, text.size() - length)) > 0;)
            length += static_cast<size_t>(got);
        text.resize(length);
        int status = 0;
        waitpid(child, &status, 0);
        results.push_back(WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : text);
        close(from);
    }
    return results;
}
void expect_well(int size, const std::function<std::string(Rank&)>& body) {
    EXPECT_EQ(in_processes(size, body), std::vector<std::string>(static_cast<size_t>(size)));
}

// ----------------------------------------------------------------------------------------------------
// values

template <class T>
constexpr ncclDataType_t type_of = ncclUint8;
template <>
constexpr ncclDataType_t type_of<float> = ncclFloat32;
template <>
constexpr ncclDataType_t type_of<bfloat16> = ncclBfloat16;

// The values of a rank, chosen so that their sums have to be rounded.
template <class T>
T value(int rank, size_t i) {
    const size_t mixed = (i * 2654435761u + static_cast<size_t>(rank) * 40503u) % 100003;
    if constexpr (std::is_same_v<T, uint8_t>) return static_cast<uint8_t>(mixed);
    else return T(static_cast<float>(mixed) / 777 - 60);
}
template <class T>
T sum(int size, size_t i) {
    T total = value<T>(0, i);
    for (int r = 1; r < size; r++) {
        if constexpr (std::is_same_v<T, bfloat16>)
            total = bfloat16(static_cast<float>(total) + static_cast<float>(value<T>(r, i)));
        else total = static_cast<T>(total + value<T>(r, i));
    }
    return total;
}

template <class T>
T* device_values(const Rank& self, size_t count, size_t first = 0) {
    T* const values = reinterpret_cast<T*>(self.written(count * sizeof(T)));
    for (size_t i = 0; i < count; i++) values[i] = value<T>(self.rank, first + i);
    return values;
}
template <class T, class Expected>
std::string compare(const T* values, size_t count, const Expected& expected) {
    for (size_t i = 0; i < count; i++) {
        const T wanted = expected(i);
        if (std::memcmp(values + i, &wanted, sizeof(T)) != 0)
            return fmt::format("element {} of {} is {} instead of {}", i, count,
                               static_cast<float>(values[i]), static_cast<float>(wanted));
    }
    return "";
}

template <class T>
std::string every_collective(Rank& self, size_t count, bool in_place) {
    const size_t ranks = static_cast<size_t>(self.size), own = static_cast<size_t>(self.rank) * count;
    const auto output = [&](T* place, size_t elements) {
        return in_place ? place : reinterpret_cast<T*>(self.allocate(elements * sizeof(T)));
    };
    std::vector<std::function<std::string()>> checks;

    T* const reduced_from = device_values<T>(self, count);
    T* const reduced = output(reduced_from, count);
    ncclAllReduce(reduced_from, reduced, count, type_of<T>, ncclSum, self.comm, nullptr);
    checks.emplace_back(
        [=] { return compare(reduced, count, [&](size_t i) { return sum<T>(self.size, i); }); });

    T* const scattered_from = device_values<T>(self, ranks * count);
    T* const scattered = output(scattered_from + own, count);
    ncclReduceScatter(scattered_from, scattered, count, type_of<T>, ncclSum, self.comm, nullptr);
    checks.emplace_back(
        [=] { return compare(scattered, count, [&](size_t i) { return sum<T>(self.size, own + i); }); });

    T* const gathered = reinterpret_cast<T*>(self.allocate(ranks * count * sizeof(T)));
    T* gathered_from = device_values<T>(self, count);
    if (in_place) {
        std::memcpy(gathered + own, gathered_from, count * sizeof(T));
        gpu->memory.note_write(gathered_from = gathered + own, count * sizeof(T), "the test");
    }
    ncclAllGather(gathered_from, gathered, count, type_of<T>, self.comm, nullptr);
    checks.emplace_back([=] {
        return compare(gathered, ranks * count,
                       [&](size_t i) { return value<T>(static_cast<int>(i / count), i % count); });
    });

    for (int root = 0; root < self.size; root++) {
        T* const sent = device_values<T>(self, count);
        T* const received = output(sent, count);
        ncclBroadcast(sent, received, count, type_of<T>, root, self.comm, nullptr);
        checks.emplace_back(
            [=] { return compare(received, count, [&](size_t i) { return value<T>(root, i); }); });
    }
    gpu->run();
    for (size_t i = 0; i < checks.size(); i++) {
        if (const std::string wrong = checks[i](); !wrong.empty())
            return fmt::format("collective {}, {} elements: {}", i, count, wrong);
    }
    return "";
}

class Processes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, Processes, testing::Values(1, 2, 3));

TEST_P(Processes, EveryCollectiveGivesWhatItMust) {
    expect_well(GetParam(), [](Rank& self) -> std::string {
        if (self.join() != ncclSuccess) return ncclGetLastError(nullptr);
        // The last size does not fit into the shared memory at once.
        for (const size_t count : {1, 7, 300000}) {
            for (const bool in_place : {false, true}) {
                for (const auto& collectives :
                     {every_collective<float>, every_collective<bfloat16>, every_collective<uint8_t>}) {
                    if (const std::string wrong = collectives(self, count, in_place); !wrong.empty())
                        return wrong;
                }
            }
        }
        return self.leave();
    });
}

TEST_P(Processes, HundredsOfCollectivesFollowEachOther) {
    expect_well(GetParam(), [](Rank& self) -> std::string {
        self.join();
        for (int i = 0; i < 300; i++) {
            if (i % 50 == 10 * self.rank) std::this_thread::sleep_for(3ms);  // another is late each time
            if (const std::string wrong =
                    every_collective<float>(self, 1 + static_cast<size_t>(i) % 5, i % 2 == 0);
                !wrong.empty())
                return wrong;
        }
        return self.leave();
    });
}

TEST(Nccl, SumsOfBf16AreRoundedAtEveryAddition) {
    expect_well(3, [](Rank& self) -> std::string {
        self.join();
        auto* const values = reinterpret_cast<bfloat16*>(self.written(2));
        *values = bfloat16(self.rank == 0 ? 256.0f : 1.0f);  // bf16 has no 257
        ncclAllReduce(values, values, 1, ncclBfloat16, ncclSum, self.comm, nullptr);
        gpu->run();
        return static_cast<float>(*values) == 256 ? self.leave()
                                                  : fmt::format("{}", static_cast<float>(*values));
    });
}

TEST(Nccl, ACollectiveRunsInItsTurnAndAsOftenAsAGraphWants) {
    expect_well(2, [](Rank& self) -> std::string {
        self.join();
        auto* const values = reinterpret_cast<float*>(self.written(4));
        ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, self.comm, nullptr);
        const auto work = gpu->queue.front();
        gpu->queue.clear();
        *values = static_cast<float>(1 + self.rank);
        work();
        work();
        return *values == 6 ? self.leave() : fmt::format("{}", *values);
    });
}

TEST(Nccl, LeavingRunsWhatIsLeftAndWaitsForTheOthers) {
    expect_well(2, [](Rank& self) -> std::string {
        self.join();
        auto* const values = reinterpret_cast<float*>(self.written(4));
        *values = 1;
        ncclAllReduce(values, values, 1, ncclFloat32, ncclSum, self.comm, nullptr);
        if (self.rank == 1) gpu->run(), std::this_thread::sleep_for(300ms);
        const auto begin = Clock::now();
        const std::string left = self.leave();
        if (self.rank == 0 && Clock::now() - begin < 200ms) return "it did not wait";
        return *values == 2 ? left : "the collective did not run";
    });
}

// ----------------------------------------------------------------------------------------------------
// findings

TEST(Nccl, RanksThatCallDifferentCollectivesAreFound) {
    const auto found = [](const std::function<void(Rank&, float*)>& call) {
        return in_processes(2, [&](Rank& self) {
            self.join();
            call(self, reinterpret_cast<float*>(self.written(400)));
            return self.fault();
        });
    };
    const auto twice = [](const std::string& text) { return std::vector<std::string>{text, text}; };
    EXPECT_EQ(
        found([](Rank& self, float* v) {
            ncclAllReduce(v, v, self.rank == 0 ? 10 : 11, ncclFloat32, ncclSum, self.comm, nullptr);
        }),
        twice("NCCL: rank 0 calls ncclAllReduce of 10 fp32 while rank 1 calls ncclAllReduce of 11 fp32"));
    EXPECT_EQ(found([](Rank& self, float* v) {
                  if (self.rank == 0) ncclAllReduce(v, v, 10, ncclFloat32, ncclSum, self.comm, nullptr);
                  else ncclReduceScatter(v, v + 10, 10, ncclFloat32, ncclSum, self.comm, nullptr);
              }),
              twice("NCCL: rank 0 calls ncclAllReduce of 10 fp32 while rank 1 calls ncclReduceScatter of 10 "
                    "fp32 a rank"));
    EXPECT_EQ(found([](Rank& self, float* v) {
                  ncclBroadcast(v, v, 10, ncclUint8, self.rank, self.comm, nullptr);
              }),
              twice("NCCL: rank 0 calls ncclBroadcast of 10 bytes from rank 0 while rank 1 calls "
                    "ncclBroadcast of 10 bytes from rank 1"));
    EXPECT_EQ(
        found([](Rank& self, float* v) {
            ncclAllReduce(v, v, 10, self.rank == 0 ? ncclFloat32 : ncclBfloat16, ncclSum, self.comm, nullptr);
        }),
        twice("NCCL: rank 0 calls ncclAllReduce of 10 fp32 while rank 1 calls ncclAllReduce of 10 bf16"));
}

TEST(Nccl, MemoryThatIsNotThereIsFound) {
    const auto found = [](const std::function<void(Rank&)>& call) {
        return in_processes(1, [&](Rank& self) {
            self.join();
            call(self);
            return self.fault();
        })[0];
    };
    EXPECT_EQ(
        found([](Rank& self) {
            std::byte* const values = self.written(40);
            gpu->memory.unpoison_gap(values + 20, 4);  // never written
            ncclAllReduce(values, values, 10, ncclFloat32, ncclSum, self.comm, nullptr);
        }),
        "ncclAllReduce of 10 fp32 reads 40 bytes, of which byte 20 of an allocation of 40 was never written");
    EXPECT_EQ(found([](Rank& self) {
                  ncclAllReduce(self.written(40), self.allocate(39), 10, ncclFloat32, ncclSum, self.comm,
                                nullptr);
              }),
              "ncclAllReduce of 10 fp32 writes 40 bytes from byte 0 of an allocation of 39 on, past its end");
    EXPECT_TRUE(found([](Rank& self) {
                    static float host[10] = {};
                    ncclAllReduce(host, host, 10, ncclFloat32, ncclSum, self.comm, nullptr);
                }).starts_with("ncclAllReduce of 10 fp32: 0x"));
    EXPECT_EQ(found([](Rank& self) {
                  std::byte* const values = self.written(80);
                  ncclAllReduce(values, values + 4, 10, ncclFloat32, ncclSum, self.comm, nullptr);
              }),
              "ncclAllReduce of 10 fp32: its input and output overlap, but not as in place");
}

// ----------------------------------------------------------------------------------------------------
// ranks that are missing

// The first error that NCCL reports; the communicator is then aborted, as by a watchdog.
std::string broken_off(Rank& self, Clock::duration at_most = 5s) {
    ncclAllReduce(self.written(40), self.written(40), 10, ncclFloat32, ncclSum, self.comm, nullptr);
    std::string message = "no error";
    std::thread watchdog([&] {
        const auto until = Clock::now() + at_most;
        while (self.state() == ncclSuccess && Clock::now() < until) std::this_thread::sleep_for(5ms);
        if (self.state() == ncclRemoteError) message = ncclGetLastError(nullptr);
        ncclCommAbort(self.comm);
    });
    const std::string fault = self.fault();
    watchdog.join();
    return fault.empty() ? message : fault;
}

TEST(Nccl, ARankThatEndsIsTheOthersError) {
    const auto results = in_processes(3, [](Rank& self) -> std::string {
        self.join();
        if (self.rank == 2) {
            std::this_thread::sleep_for(100ms);
            kill(getpid(), SIGKILL);
        }
        return broken_off(self);
    });
    EXPECT_EQ(results,
              (std::vector<std::string>{"rank 2 has ended before ncclAllReduce of 10 fp32",
                                        "rank 2 has ended before ncclAllReduce of 10 fp32", "signal 9"}));
}

TEST(Nccl, ARankThatAbortsIsTheOthersError) {
    const auto results = in_processes(2, [](Rank& self) -> std::string {
        self.join();
        if (self.rank == 0) return broken_off(self);
        ncclCommAbort(self.comm);
        std::this_thread::sleep_for(1s);
        return "";
    });
    EXPECT_EQ(results, (std::vector<std::string>{"rank 1 has aborted before ncclAllReduce of 10 fp32", ""}));
}

TEST(Nccl, ARankThatDoesNotComeIsTheOthersError) {
    const auto results = in_processes(2, [](Rank& self) -> std::string {
        self.join();
        setenv("SOFTWARE_GPU_PATIENCE", "0.5", 1);
        if (self.rank == 0) return broken_off(self);
        std::this_thread::sleep_for(2s);
        return "";
    });
    EXPECT_EQ(results,
              (std::vector<std::string>{"rank 1 did not come to ncclAllReduce of 10 fp32 for 0.5 s", ""}));
}

TEST(Nccl, WhatIsBrokenOffLooksFinished) {
    expect_well(2, [](Rank& self) -> std::string {
        self.join();
        if (self.rank == 1) return std::this_thread::sleep_for(300ms), "";
        ncclAllReduce(self.written(40), self.written(40), 10, ncclFloat32, ncclSum, self.comm, nullptr);
        ncclCommAbort(self.comm);
        return self.fault();
    });
}

// ----------------------------------------------------------------------------------------------------
// meeting

TEST(Nccl, RanksThatDoNotAllComeAreAnError) {
    setenv("SOFTWARE_GPU_PATIENCE", "0.5", 1);
    const auto results = in_processes(3, [](Rank& self) -> std::string {
        if (self.rank == 1) return "";
        const ncclResult_t result = self.join();
        return fmt::format("{}: {}", static_cast<int>(result), ncclGetLastError(nullptr));
    });
    const std::string message =
        fmt::format("{}: only 2 of 3 ranks came for 0.5 s", static_cast<int>(ncclSystemError));
    EXPECT_EQ(results, (std::vector<std::string>{message, "", message}));
    EXPECT_TRUE(in_processes(2,
                             [](Rank& self) -> std::string {
                                 if (self.rank == 0) return "";
                                 self.join();
                                 return ncclGetLastError(nullptr);
                             })[1]
                    .starts_with("rank 0 did not come to software-gpu:"));
    unsetenv("SOFTWARE_GPU_PATIENCE");
}

TEST(Nccl, ProcessesOnOneGpuAreRefused) {
    const auto results = in_processes(2, [](Rank& self) -> std::string {
        gpu->device = 3;
        return self.join() == ncclInvalidUsage ? ncclGetLastError(nullptr) : "no error";
    });
    const std::string message = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 3";
    EXPECT_EQ(results, (std::vector<std::string>{message, message}));
}

TEST(Nccl, RanksThatExpectDifferentNumbersAreRefused) {
    const auto results = in_processes(2, [](Rank& self) -> std::string {
        self.size += self.rank;
        return self.join() == ncclInvalidUsage ? ncclGetLastError(nullptr) : "no error";
    });
    EXPECT_EQ(results, (std::vector<std::string>(2, "rank 1 expects 3 ranks, rank 0 2")));
}

TEST(Nccl, AnAddressMakesTheSameIdEverywhereAndServesOneRun) {
    const std::string address = fmt::format("127.0.0.1:{}", getpid());
    const auto results = in_processes(3, [&](Rank& self) -> std::string {
        setenv("NCCL_COMM_ID", address.c_str(), 1);
        if (ncclGetUniqueId(&self.id) != ncclSuccess) return "no id";
        self.size = 2;
        if (self.rank < 2) {
            if (self.rank == 1) std::this_thread::sleep_for(400ms);
            return self.join() == ncclSuccess ? self.leave() : ncclGetLastError(nullptr);
        }
        self.rank = 0;  // of another run
        std::this_thread::sleep_for(150ms);
        return self.join() == ncclSystemError ? ncclGetLastError(nullptr) : "no error";
    });
    EXPECT_EQ(results, (std::vector<std::string>{
                           "", "", fmt::format("software-gpu:{}: Address already in use", address)}));
}

TEST(Nccl, WhatIsNotKnownIsRefused) {
    expect_well(1, [](Rank& self) -> std::string {
        self.join();
        std::byte* const values = self.written(64);
        if (ncclAllReduce(values, values, 4, ncclFloat64, ncclSum, self.comm, nullptr) != ncclInvalidArgument)
            return "fp64";
        if (ncclAllReduce(values, values, 4, ncclFloat32, ncclMax, self.comm, nullptr) != ncclInvalidArgument)
            return "max";
        if (ncclBroadcast(values, values, 4, ncclFloat32, 1, self.comm, nullptr) != ncclInvalidArgument)
            return "root";
        if (ncclAllReduce(nullptr, values, 4, ncclFloat32, ncclSum, self.comm, nullptr) !=
            ncclInvalidArgument)
            return "NULL";
        if (ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, self.comm, nullptr) != ncclSuccess)
            return "nothing";
        return difference(ncclGetErrorString(ncclRemoteError),
                          "remote process exited or there was a network error");
    });
}

}  // namespace
