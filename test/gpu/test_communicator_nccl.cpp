// communicator_nccl.cpp on the software GPU: its calls, how it ends a hanging run, and what the software
// GPU's NCCL finds. Each rank is a child process of the test. test/mpi/ tests the values.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rank_process.h"
#include "software_gpu/stream.h"
#include "software_gpu/trace.h"
#include "system/error.h"
#include "trainer/distributed/communicator.h"

namespace {

using Clock = std::chrono::steady_clock;
using Strings = std::vector<std::string>;

// Seconds. A busy machine may interrupt a process for tenths of one.
constexpr double short_time = 0.6, long_time = 60;
// These settings say how the imitated NCCL functions below behave.
bool abort_hangs = false;
ncclResult_t result_of_meeting = ncclSuccess;
std::string error_of_meeting;

void pass(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

// The linker sends the communicator's calls here (--wrap).
extern "C" {
ncclResult_t __real_ncclCommAbort(ncclComm_t comm);
ncclResult_t __wrap_ncclCommAbort(ncclComm_t comm) {
    while (abort_hangs) pass(0.001);
    software_gpu::trace("ncclCommAbort");
    return __real_ncclCommAbort(comm);
}
ncclResult_t __real_ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank);
ncclResult_t __wrap_ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return result_of_meeting != ncclSuccess ? result_of_meeting
                                            : __real_ncclCommInitRank(comm, size, id, rank);
}
const char* __real_ncclGetLastError(ncclComm_t comm);
const char* __wrap_ncclGetLastError(ncclComm_t comm) {
    return result_of_meeting != ncclSuccess ? error_of_meeting.c_str() : __real_ncclGetLastError(comm);
}
}

namespace {

// One rank, in a process of its own.
struct Rank {
    Process process;

    std::unique_ptr<Communicator> join(double time_limit = long_time) const {
        simt::select_device(process.local_rank, process.local_size);
        return make_communicator(process, time_limit);
    }
};

// Runs the body in a process for each rank. A rank's result is what it wrote to standard error and what the
// body returned, behind its exit code or signal if that is not 0.
Strings in_processes(int size, const std::function<std::string(const Rank&)>& body) {
    std::vector<std::pair<pid_t, int>> children;
    for (int rank = 0; rank < size; rank++) {
        int ends[2];
        if (pipe(ends) != 0) throw std::runtime_error("pipe");
        const pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], STDERR_FILENO);
            int code = 0;
            try {
                const Rank self{{.rank = rank,
                                 .world_size = size,
                                 .local_rank = rank,
                                 .local_size = size,
                                 .launcher = size > 1 ? "torchrun" : "mpirun",
                                 .launch = "",
                                 .main_address = fmt::format("127.0.0.1:{}", getppid())}};
                fmt::print(stderr, "{}", body(self));
            } catch (const Error& error) {
                fmt::print(stderr, "{}", error.what());
                code = error.exit_code;
            }
            std::fflush(stderr);
            _exit(code);
        }
        close(ends[1]);
        children.emplace_back(child, ends[0]);
    }
    Strings results;
    for (const auto& [child, from] : children) {
        std::string text;
        char part[1024];
        for (ssize_t got; (got = read(from, part, sizeof(part))) > 0;)
            text.append(part, static_cast<size_t>(got));
        close(from);
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status)) text = fmt::format("signal {}", WTERMSIG(status));
        else if (WEXITSTATUS(status) != 0) text = fmt::format("{}: {}", WEXITSTATUS(status), text);
        results.push_back(text);
    }
    return results;
}
void expect_well(int size, const std::function<std::string(const Rank&)>& body) {
    EXPECT_EQ(in_processes(size, body), Strings(static_cast<size_t>(size)));
}

// The calls since the last query, with a letter for each address, in the order of their first occurrence.
Strings take_calls() {
    const std::regex address("0x[0-9a-f]+");
    std::map<std::string, char> letters;
    Strings calls = software_gpu::take_calls();
    for (std::string& call : calls) {
        for (std::smatch match; std::regex_search(call, match, address);) {
            const auto letter = letters.emplace(match.str(), static_cast<char>('A' + letters.size())).first;
            call = match.prefix().str() + letter->second + match.suffix().str();
        }
    }
    return calls;
}
std::string difference(const Strings& found, const Strings& expected) {
    return found == expected ? "" : testing::PrintToString(found);
}

struct Values {
    simt::DeviceBuffer<float> memory;
    explicit Values(size_t count = 32) : memory(count) {
        std::vector<float> ones(count, 1.0f);
        simt::copy_to_device(memory.data(), ones.data(), memory.bytes(), nullptr);
        simt::stream_synchronize(nullptr);
    }
    Collective all_reduce(size_t count = 10) const {
        return {Collective::all_reduce, memory.data(), count, Collective::fp32};
    }
    float first() const {
        float value = 0;
        simt::copy_to_host(&value, memory.data(), sizeof(value), nullptr);
        simt::stream_synchronize(nullptr);
        return value;
    }
};

TEST(CommunicatorNccl, ACollectiveRunsAfterTheStreamsWorkAndBesideWhatFollows) {
    expect_well(1, [](const Rank& self) {
        const Values values;
        const stream_t stream = simt::stream_create();
        software_gpu::take_calls();
        const auto communicator = self.join();
        const Strings joined = take_calls();
        if (joined.empty() || joined[0] != "stream A of priority -5") return std::string("another priority");
        const Communicator::Ticket ticket = communicator->begin(values.all_reduce(), stream);
        communicator->begin({Collective::broadcast, values.memory.data(), 40, Collective::byte}, stream);
        communicator->wait(ticket, stream);  // not for the second
        communicator->begin({Collective::all_reduce, nullptr, 0, Collective::fp32}, stream);  // nothing
        return difference(take_calls(),
                          {"record event A in stream B", "stream C waits for event A",
                           "ncclAllReduce of 10 fp32 from D to D in stream C", "record event E in stream C",
                           "record event F in stream B", "stream C waits for event F",
                           "ncclBroadcast of 40 bytes from rank 0 from D to D in stream C",
                           "record event G in stream C", "stream B waits for event E"});
    });
}

TEST(CommunicatorNccl, CountsThatDoNotDivideAreRefused) {
    expect_well(2, [](const Rank& self) {
        const Values values;
        const auto communicator = self.join();
        for (const auto kind : {Collective::all_gather, Collective::reduce_scatter}) {
            try {
                communicator->begin({kind, values.memory.data(), 31, Collective::fp32}, nullptr);
                return "it was begun";
            } catch (const UsageError&) {}
        }
        return "";
    });
}

TEST(CommunicatorNccl, AnyNumberOfOperationsMayBeUnderWay) {
    expect_well(1, [](const Rank& self) {
        const Values values;
        const auto communicator = self.join();
        std::vector<Communicator::Ticket> tickets;
        for (int i = 0; i < 600; i++) tickets.push_back(communicator->begin(values.all_reduce(), nullptr));
        if (std::set(tickets.begin(), tickets.end()).size() != 600) return "two have one ticket";
        software_gpu::take_calls();
        communicator->wait(tickets[0], nullptr);
        communicator->wait(tickets[343], nullptr);
        if (!take_calls().empty()) return "what another operation's place shows to be over was waited for";
        communicator->wait(tickets[344], nullptr);
        communicator->wait(tickets[599], nullptr);
        return take_calls().size() == 2 ? "" : "two waits were expected";
    });
}

TEST(CommunicatorNccl, LeavingWaitsForTheOthersButNotAfterAnError) {
    for (const bool fails : {false, true}) {
        const Strings results = in_processes(2, [&](const Rank& self) {
            const Values values;
            auto communicator = self.join();
            communicator->begin(values.all_reduce(), nullptr);
            if (self.process.rank == 1) pass(2);
            const auto begin = Clock::now();
            try {
                const auto leaving = std::move(communicator);
                if (fails) throw Error("an error of this process");
            } catch (const Error&) {}
            const bool waited = Clock::now() - begin > std::chrono::seconds(1);
            if (self.process.rank == 0 && waited == fails) return fails ? "it waited" : "it did not wait";
            return fails || values.first() == 2 ? "" : "the operation did not run";
        });
        EXPECT_EQ(results[0], "");
        EXPECT_EQ(results[1], fails
                                  ? "1: test_communicator_nccl: rank 1: NCCL: remote process exited or there "
                                    "was a network error: rank 0 has aborted before ncclAllReduce of 10 "
                                    "fp32\n"
                                  : "");
    }
}

// As GPT2's destructor does.
struct Model {
    Communicator& communicator;
    const Values& values;
    ~Model() {
        if (std::uncaught_exceptions() > 0) communicator.abort_operations();
        cudaStreamSynchronize(nullptr);  // the operation uses the values until then
    }
};
TEST(CommunicatorNccl, AnErrorBreaksOffWhatOtherProcessesNeverJoin) {
    const Strings results = in_processes(2, [](const Rank& self) {
        const Values values;
        const auto communicator = self.join();
        if (self.process.rank == 1) {
            pass(2);
            _exit(0);
        }
        const auto begin = Clock::now();
        try {
            const Model model{*communicator, values};
            communicator->wait(communicator->begin(values.all_reduce(), nullptr), nullptr);
            throw Error("an error of this process");
        } catch (const Error&) {}
        if (Clock::now() - begin > std::chrono::seconds(1)) return "it waited for the other";
        // Nothing may use the results of failed operations.
        int refused = 0;
        for (const auto& use :
             std::vector<std::function<void()>>{[&] { communicator->begin(values.all_reduce(), nullptr); },
                                                [&] { communicator->wait(1, nullptr); }}) {
            try {
                use();
            } catch (const Error&) { refused++; }
        }
        software_gpu::take_calls();
        communicator->abort_operations();
        return refused == 2 && take_calls().empty() ? "" : "it was used again";
    });
    EXPECT_EQ(results, (Strings{"", ""}));
}

void expect_end(const std::string& result, const std::string& expected) {
    EXPECT_EQ(result, "1: test_communicator_nccl: rank 0: " + expected + "\n");
}
const std::string timeout =
    " has not finished for 0.6 s (--comm-timeout); another process has ended, hangs or is that slow";

TEST(CommunicatorNccl, AnAbortThatHangsEndsTheProcess) {
    expect_end(in_processes(1,
                            [](const Rank& self) {
                                const auto communicator = self.join(short_time);
                                abort_hangs = true;
                                communicator->abort_operations();
                                return "";
                            })[0],
               "ncclCommAbort has not finished for 0.6 s, after an error of this process");
}

TEST(CommunicatorNccl, AProcessOfItsOwnNeedsNoNccl) {
    expect_well(1, [](const Rank&) {
        software_gpu::take_calls();
        return make_communicator({}, long_time)->size() == 1 && take_calls().empty() ? "" : "it was used";
    });
}

TEST(CommunicatorNccl, ErrorsOfTheMeetingSayWhatToDo) {
    const auto message = [](ncclResult_t result, const std::string& detail) {
        return in_processes(1, [&](const Rank& self) {
            result_of_meeting = result;
            error_of_meeting = detail;
            self.join();
            return "";
        })[0];
    };
    EXPECT_EQ(message(ncclInvalidUsage, "Mismatched NCCL version detected : rank 1 version 22703 rank 0"),
              "1: the processes have different versions of NCCL; expected the same on all machines (NCCL: "
              "Mismatched NCCL version detected : rank 1 version 22703 rank 0)");
    EXPECT_EQ(message(ncclSystemError, ""),
              "1: NCCL: unhandled system error (run with NCCL_DEBUG=INFO for details)");
    EXPECT_EQ(in_processes(2,
                           [](const Rank& self) {
                               make_communicator(self.process, long_time);
                               return "";
                           }),
              Strings(2,
                      "1: two processes use one GPU; expected no more processes than GPUs on each "
                      "machine, and a different GPU for each in CUDA_VISIBLE_DEVICES if that is set "
                      "(NCCL: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0)"));
}

TEST(CommunicatorNccl, AMeetingThatTakesTooLongEndsTheProcess) {
    const Strings results = in_processes(2, [](const Rank& self) {
        if (self.process.rank == 0) self.join(short_time);
        return "";
    });
    expect_end(results[0], "meeting the other 1 processes" + timeout);
}

TEST(CommunicatorNccl, AMeetingThatTakesTooLongNamesAProcessThatIsStopped) {
    const std::string address = fmt::format("test{}", getpid());  // no launch has it
    RankProcess first(1, 3, address), second(2, 3, address);
    second.stop();
    const Strings results = in_processes(1, [&](const Rank& self) {
        Rank one = self;
        one.process.world_size = one.process.local_size = 3;
        one.process.launcher = "torchrun";
        one.process.launch = address + ":1234";
        one.join(short_time);
        return "";
    });
    expect_end(results[0], "meeting the other 2 processes" + timeout + "; rank 2 is stopped");
}

TEST(CommunicatorNccl, AnOperationThatTakesTooLongEndsTheProcessWhereverItHangs) {
    const Strings results = in_processes(2, [](const Rank& self) {
        const Values values;
        const auto communicator = self.join(self.process.rank == 0 ? short_time : long_time);
        communicator->wait(communicator->begin(values.all_reduce(), nullptr), nullptr);
        simt::stream_synchronize(nullptr);
        if (self.process.rank == 1) {
            pass(3);
            _exit(0);
        }
        communicator->begin({Collective::reduce_scatter, values.memory.data(), 32, Collective::fp32},
                            nullptr);
        simt::stream_synchronize(nullptr);
        pass(long_time);
        return "";
    });
    expect_end(results[0], "operation 2, reduce_scatter of 128 bytes," + timeout);
}

TEST(CommunicatorNccl, TheTimeOfAnOperationCountsFromWhenThisProcessIsReady) {
    expect_well(1, [](const Rank& self) {
        const Values values;
        const auto communicator = self.join(short_time);
        software_gpu::enqueue(
            nullptr, [] { pass(2 * short_time); }, "backward",
            software_gpu::WaitsFor::other_processes);  // never delays the host
        communicator->wait(communicator->begin(values.all_reduce(), nullptr), nullptr);
        simt::stream_synchronize(nullptr);
        pass(2 * short_time);
        return "";
    });
}

TEST(CommunicatorNccl, ManyOperationsTogetherMayTakeLonger) {
    expect_well(2, [](const Rank& self) {
        const Values values;
        const auto communicator = self.join(0.5);
        Communicator::Ticket last = 0;
        for (int i = 0; i < 6; i++) {
            if (self.process.rank == 1) pass(0.15);
            last = communicator->begin(values.all_reduce(), nullptr);
            if (self.process.rank == 1) communicator->wait(last, nullptr), simt::stream_synchronize(nullptr);
        }
        communicator->wait(last, nullptr);
        return values.first() == 64 ? "" : "another sum";
    });
}

TEST(CommunicatorNccl, ARankThatEndsIsAnAsynchronousErrorWhichEndsTheProcess) {
    const Strings results = in_processes(2, [](const Rank& self) {
        const Values values;
        const auto communicator = self.join();
        if (self.process.rank == 1) kill(getpid(), SIGKILL);
        communicator->begin(values.all_reduce(), nullptr);
        simt::stream_synchronize(nullptr);
        pass(long_time);
        return "";
    });
    expect_end(results[0],
               "NCCL: remote process exited or there was a network error: rank 1 has ended before "
               "ncclAllReduce of 10 fp32");
    EXPECT_EQ(results[1], "signal 9");
}

TEST(CommunicatorNccl, AbortEndsTheProcessWithItsCode) {
    EXPECT_EQ(in_processes(1, [](const Rank& self) -> std::string { self.join()->abort(5); }),
              Strings{"5: "});
}

TEST(CommunicatorNccl, TheVersionIsReadable) {
    EXPECT_EQ(communicator_library(), fmt::format("NCCL {}.{}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));
}

// ----------------------------------------------------------------------------------------------------
// what the software GPU's NCCL finds

TEST(SoftwareNccl, RanksThatCallDifferentCollectivesAreFound) {
    const auto found = [](const std::function<Collective(int rank, float* values)>& collective) {
        return in_processes(2, [&](const Rank& self) {
            const Values values;
            const auto communicator = self.join();
            communicator->begin(collective(self.process.rank, values.memory.data()), nullptr);
            pass(long_time);
            return "";
        });
    };
    const auto twice = [](const std::string& calls) {
        return Strings(2, "86: software GPU: NCCL: rank 0 calls " + calls + "\n");
    };
    EXPECT_EQ(found([](int rank, float* v) {
                  return Collective{Collective::all_reduce, v, rank == 0 ? 10u : 11u, Collective::fp32};
              }),
              twice("ncclAllReduce of 10 fp32 while rank 1 calls ncclAllReduce of 11 fp32"));
    EXPECT_EQ(found([](int rank, float* v) {
                  return Collective{rank == 0 ? Collective::all_reduce : Collective::reduce_scatter, v, 20,
                                    Collective::fp32};
              }),
              twice("ncclAllReduce of 20 fp32 while rank 1 calls ncclReduceScatter of 10 fp32 a rank"));
    EXPECT_EQ(found([](int rank, float* v) {
                  return Collective{Collective::broadcast, v, 10, Collective::byte, rank};
              }),
              twice("ncclBroadcast of 10 bytes from rank 0 while rank 1 calls ncclBroadcast of 10 bytes from "
                    "rank 1"));
    EXPECT_EQ(
        found([](int rank, float* v) {
            return Collective{Collective::all_reduce, v, 10, rank == 0 ? Collective::fp32 : Collective::bf16};
        }),
        twice("ncclAllReduce of 10 fp32 while rank 1 calls ncclAllReduce of 10 bf16"));
}

TEST(SoftwareNccl, RanksThatExpectDifferentNumbersAreRefused) {
    const Strings results = in_processes(2, [](const Rank& self) {
        Rank other = self;
        other.process.world_size += self.process.rank;
        other.join();
        return "";
    });
    const std::string message = "1: NCCL: invalid usage (run with NCCL_DEBUG=WARN for details): ";
    EXPECT_EQ(results, Strings(2, message + "rank 1 expects 3 ranks, rank 0 2"));
}

TEST(SoftwareNccl, SumsOfBf16AreRoundedAtEveryAddition) {
    expect_well(3, [](const Rank& self) {
        const auto communicator = self.join();
        const simt::DeviceBuffer<bfloat16> value(1);
        bfloat16 own(self.process.rank == 0 ? 256.0f : 1.0f);  // bf16 has no 257
        simt::copy_to_device(value.data(), &own, sizeof(own), nullptr);
        communicator->wait(
            communicator->begin({Collective::all_reduce, value.data(), 1, Collective::bf16}, nullptr),
            nullptr);
        simt::copy_to_host(&own, value.data(), sizeof(own), nullptr);
        simt::stream_synchronize(nullptr);
        return static_cast<float>(own) == 256 ? "" : "another sum";
    });
}

// The result of calls of NCCL in a communicator of one rank.
std::string alone(const std::function<std::string(ncclComm_t)>& calls) {
    return in_processes(1, [&](const Rank&) {
        ncclUniqueId id;
        ncclComm_t comm = nullptr;
        ncclGetUniqueId(&id);
        ncclCommInitRank(&comm, 1, id, 0);
        const std::string result = calls(comm);
        cudaStreamSynchronize(nullptr);
        return result;
    })[0];
}
float* allocated(size_t bytes, size_t written) {
    void* memory = nullptr;
    cudaMalloc(&memory, bytes);
    cudaMemsetAsync(memory, 0, written, nullptr);
    return static_cast<float*>(memory);
}

TEST(SoftwareNccl, MemoryThatIsNotThereIsFound) {
    const auto found = [](const std::function<std::pair<float*, float*>()>& from_and_to) {
        return alone([&](ncclComm_t comm) {
            const auto [from, to] = from_and_to();
            ncclAllReduce(from, to, 10, ncclFloat32, ncclSum, comm, nullptr);
            return "";
        });
    };
    const std::string call = "86: software GPU: ncclAllReduce of 10 fp32";
    EXPECT_EQ(found([] {
                  return std::pair{allocated(40, 20), allocated(40, 0)};
              }),
              call + " reads 40 bytes, of which byte 20 of an allocation of 40 was never written\n");
    EXPECT_EQ(found([] {
                  return std::pair{allocated(40, 40), allocated(39, 0)};
              }),
              call + " writes 40 bytes from byte 0 of an allocation of 39 on, past its end\n");
    static float host[10];
    EXPECT_TRUE(found([] { return std::pair{host, host}; }).starts_with(call + ": 0x"));
    EXPECT_EQ(found([] {
                  float* const values = allocated(80, 80);
                  return std::pair{values, values + 1};
              }),
              call + ": its input and output overlap, but not as in place\n");
}

TEST(SoftwareNccl, WhatIsNotKnownIsRefused) {
    const std::string result = alone([](ncclComm_t comm) {
        float* const values = allocated(64, 64);
        const ncclResult_t results[] = {
            ncclAllReduce(values, values, 4, ncclFloat64, ncclSum, comm, nullptr),
            ncclAllReduce(values, values, 4, ncclFloat32, ncclMax, comm, nullptr),
            ncclBroadcast(values, values, 4, ncclFloat32, 1, comm, nullptr),
            ncclAllReduce(nullptr, values, 4, ncclFloat32, ncclSum, comm, nullptr)};
        for (const ncclResult_t one : results) {
            if (one != ncclInvalidArgument) return "it was taken";
        }
        return "";
    });
    EXPECT_EQ(result, "");
}

}  // namespace
