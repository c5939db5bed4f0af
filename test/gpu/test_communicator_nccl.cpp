// communicator_nccl.cpp with imitations of NCCL and of the CUDA runtime, defined below: its calls, and how
// it ends a hanging run, on a machine without a GPU. A stream is a number of queued commands and a number
// of finished ones; the tests decide when a command finishes.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../rank_process.h"
#include "system/error.h"
#include "trainer/distributed/communicator.h"

struct CUstream_st {
    std::string name;
    std::atomic<int> given = 0, done = 0;
    std::atomic<bool> finishes = true;  // a command finishes as soon as it is queued
};
struct CUevent_st {
    const CUstream_st* stream = nullptr;
    int command = 0;
    bool over() const { return stream == nullptr || stream->finishes || stream->done >= command; }
};

namespace {

// Behaviour of the imitation, and the recorded calls.
struct Imitation {
    std::mutex mutex;
    std::vector<std::string> calls;
    CUstream_st own{"own"};
    std::atomic<bool> meeting_hangs = false;
    std::atomic<ncclResult_t> asynchronous = ncclSuccess;
    ncclResult_t meeting = ncclSuccess;
    std::string last_error;
    std::atomic<int> events = 0;
    std::atomic<bool> abort_hangs = false;

    void call(const std::string& text) {
        const std::lock_guard lock(mutex);
        calls.push_back(text);
    }
};
Imitation* imitation = nullptr;

float memory[64];  // device memory: never touched

std::string place(const void* pointer) { return std::to_string(static_cast<const float*>(pointer) - memory); }

ncclResult_t collective(const std::string& name, const void* from, const void* to, size_t count,
                        ncclDataType_t type, cudaStream_t stream) {
    stream->given++;
    const char* const type_name = type == ncclFloat32 ? "fp32" : type == ncclBfloat16 ? "bf16" : "byte";
    imitation->call(fmt::format("{} {} {} from {} to {} on {}", name, count, type_name, place(from),
                                place(to), stream->name));
    return ncclSuccess;
}

}  // namespace

extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    imitation->call(
        fmt::format("stream {} {}", flags == cudaStreamNonBlocking ? "non-blocking" : "blocking", priority));
    return *stream = &imitation->own, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return imitation->events++, *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return imitation->events--, delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return *event = {stream, stream->given}, cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return event->over() ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    imitation->call("synchronize");
    while (!event->over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    imitation->call(fmt::format("{} waits for {} {}", stream->name, event->stream->name, event->command));
    return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

ncclResult_t ncclGetVersion(int* version) { return *version = 22809, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return *id = {}, ncclSuccess; }
const char* ncclGetLastError(ncclComm_t) { return imitation->last_error.c_str(); }
const char* ncclGetErrorString(ncclResult_t) { return "what NCCL says of the code"; }
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId, int rank) {
    imitation->call(fmt::format("join {} of {}", rank, size));
    while (imitation->meeting_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    *comm = reinterpret_cast<ncclComm_t>(imitation);
    return imitation->meeting;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
    return *state = imitation->asynchronous, ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t) {
    imitation->call("abort");
    while (imitation->abort_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    imitation->own.finishes = true;
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return imitation->call("finalize"), ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return imitation->call("destroy"), ncclSuccess; }
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t, cudaStream_t stream) {
    return collective(op == ncclSum ? "all_reduce sum" : "all_reduce", from, to, count, type, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t, cudaStream_t stream) {
    return collective(op == ncclSum ? "reduce_scatter sum" : "reduce_scatter", from, to, count, type, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t,
                           cudaStream_t stream) {
    return collective("all_gather", from, to, count, type, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t, cudaStream_t stream) {
    return collective(fmt::format("broadcast of {}", root), from, to, count, type, stream);
}
}

namespace {

const Process third = {.rank = 3,
                       .world_size = 4,
                       .local_rank = 3,
                       .local_size = 4,
                       .launcher = "torchrun",
                       .launch = "",
                       .main_address = "127.0.0.1:29501"};
constexpr double short_time = 0.2, long_time = 60;

void pass(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class Nccl : public testing::Test {
protected:
    void SetUp() override { imitation = &fake; }

    Imitation fake;
    CUstream_st stream{"main"};
};

TEST_F(Nccl, ACollectiveRunsAfterTheStreamsWorkAndBesideWhatFollows) {
    const auto communicator = make_communicator(third, long_time);
    EXPECT_EQ(fake.calls, (std::vector<std::string>{"stream non-blocking -5", "join 3 of 4"}));
    fake.calls.clear();
    stream.given = 7;
    const Communicator::Ticket ticket =
        communicator->begin({Collective::all_reduce, memory, 10, Collective::fp32}, &stream);
    EXPECT_EQ(fake.calls, (std::vector<std::string>{"own waits for main 7",
                                                    "all_reduce sum 10 fp32 from 0 to 0 on own"}));
    stream.given = 9;
    communicator->begin({Collective::broadcast, memory, 10, Collective::byte, 2}, &stream);
    fake.calls.clear();
    communicator->wait(ticket, &stream);
    EXPECT_EQ(fake.calls, (std::vector<std::string>{"main waits for own 1"}));  // not for the second
}

TEST_F(Nccl, PartsAreInPlace) {
    const auto communicator = make_communicator(third, long_time);
    fake.calls.clear();
    const auto last = [&](const Collective& collective) {
        communicator->begin(collective, &stream);
        return fake.calls.back();
    };
    EXPECT_EQ(last({Collective::reduce_scatter, memory, 32, Collective::fp32}),
              "reduce_scatter sum 8 fp32 from 0 to 24 on own");
    EXPECT_EQ(last({Collective::reduce_scatter, memory, 32, Collective::bf16}),
              "reduce_scatter sum 8 bf16 from 0 to 12 on own");
    EXPECT_EQ(last({Collective::all_gather, memory, 32, Collective::byte}),
              "all_gather 8 byte from 6 to 0 on own");
    EXPECT_EQ(last({Collective::broadcast, memory, 32, Collective::byte, 2}),
              "broadcast of 2 32 byte from 0 to 0 on own");
    EXPECT_EQ(last({Collective::all_reduce, memory, 31, Collective::bf16}),
              "all_reduce sum 31 bf16 from 0 to 0 on own");
    EXPECT_THROW(communicator->begin({Collective::all_gather, memory, 31, Collective::byte}, &stream),
                 UsageError);
    EXPECT_THROW(communicator->begin({Collective::reduce_scatter, memory, 31, Collective::fp32}, &stream),
                 UsageError);
}

TEST_F(Nccl, NothingToSendIsNothingToDo) {
    const auto communicator = make_communicator(third, long_time);
    fake.calls.clear();
    communicator->wait(communicator->begin({Collective::all_reduce, nullptr, 0, Collective::fp32}, &stream),
                       &stream);
    EXPECT_TRUE(fake.calls.empty());
}

TEST_F(Nccl, AnyNumberOfOperationsMayBeUnderWay) {
    const auto communicator = make_communicator(third, long_time);
    fake.own.finishes = false;
    // The GPU finishes one operation in 50 microseconds.
    std::atomic<bool> ended = false;
    std::thread gpu([&] {
        while (!ended) {
            if (fake.own.done < fake.own.given) fake.own.done++;
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    });
    std::vector<Communicator::Ticket> tickets;
    for (int i = 0; i < 2000; i++) {
        tickets.push_back(
            communicator->begin({Collective::all_reduce, memory, 10, Collective::fp32}, &stream));
        EXPECT_LE(fake.own.given - fake.own.done, 257);
    }
    EXPECT_EQ(std::set(tickets.begin(), tickets.end()).size(), 2000u);
    fake.calls.clear();
    communicator->wait(tickets[0], &stream);
    communicator->wait(tickets[1743], &stream);
    EXPECT_TRUE(fake.calls.empty());  // it is known to be over, because another operation uses its place
    communicator->wait(tickets[1744], &stream);
    communicator->wait(tickets[1999], &stream);
    EXPECT_EQ(fake.calls, (std::vector<std::string>{"main waits for own 1745", "main waits for own 2000"}));
    ended = true;
    gpu.join();
}

TEST_F(Nccl, LeavingWaitsForTheOthersButNotAfterAnError) {
    make_communicator(third, long_time).reset();
    EXPECT_EQ(fake.calls,
              (std::vector<std::string>{"stream non-blocking -5", "join 3 of 4", "finalize", "destroy"}));
    EXPECT_EQ(fake.events, 0);
    fake.calls.clear();
    try {
        const auto communicator = make_communicator(third, long_time);
        throw std::runtime_error("an error of this process");
    } catch (const std::runtime_error&) {}
    EXPECT_EQ(fake.calls, (std::vector<std::string>{"stream non-blocking -5", "join 3 of 4", "abort"}));
}

// As GPT2's destructor does.
struct Model {
    Communicator& communicator;
    cudaEvent_t done;
    ~Model() {
        if (std::uncaught_exceptions() > 0) communicator.break_off();
        cudaEventSynchronize(done);  // the operation uses its memory until then
    }
};
TEST_F(Nccl, AnErrorBreaksOffWhatOtherProcessesNeverJoin) {
    const auto begin = std::chrono::steady_clock::now();
    CUevent_st done;
    const auto communicator = make_communicator(third, long_time);
    fake.own.finishes = false;
    const auto fail = [&] {
        const Model model{*communicator, &done};
        const auto ticket =
            communicator->begin({Collective::all_reduce, memory, 10, Collective::fp32}, &stream);
        communicator->wait(ticket, &stream);
        cudaEventRecord(&done, &fake.own);
        throw Error("an error of this process");
    };
    EXPECT_THROW(fail(), Error);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    // Nothing may use the results of failed operations.
    EXPECT_THROW(communicator->begin({Collective::all_reduce, memory, 10, Collective::fp32}, &stream), Error);
    EXPECT_THROW(communicator->wait(1, &stream), Error);
    communicator->break_off();
    EXPECT_EQ(std::count(fake.calls.begin(), fake.calls.end(), "abort"), 1);
    EXPECT_EQ(std::count(fake.calls.begin(), fake.calls.end(), "finalize"), 0);
}

TEST_F(Nccl, AnAbortThatHangsEndsTheProcess) {
    EXPECT_EXIT(
        {
            const auto communicator = make_communicator(third, short_time);
            fake.abort_hangs = true;
            communicator->break_off();
        },
        testing::ExitedWithCode(1),
        "^[a-z_]+: rank 3: ncclCommAbort has not finished for 0.2 s, after an error of this process\n$");
}

TEST_F(Nccl, AProcessOfItsOwnNeedsNoNccl) {
    EXPECT_EQ(make_communicator({}, long_time)->size(), 1);
    EXPECT_TRUE(fake.calls.empty());
    Process one;
    one.launcher = "mpirun";
    EXPECT_EQ(make_communicator(one, long_time)->size(), 1);  // mpirun -np 1 tries it all the same
    EXPECT_EQ(fake.calls[1], "join 0 of 1");
}

TEST_F(Nccl, ErrorsOfTheMeetingSayWhatToDo) {
    const auto message = [&](ncclResult_t result, const std::string& detail) -> std::string {
        fake.meeting = result;
        fake.last_error = detail;
        try {
            make_communicator(third, long_time);
        } catch (const Error& error) {
            EXPECT_EQ(error.exit_code, 1);
            return error.what();
        }
        return "no error";
    };
    EXPECT_EQ(
        message(ncclInvalidUsage, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"),
        "two processes use one GPU; expected no more processes than GPUs on each machine, and a "
        "different GPU for each in CUDA_VISIBLE_DEVICES if that is set (NCCL: Duplicate GPU detected : rank "
        "0 and rank 1 both on CUDA device 1000)");
    EXPECT_EQ(message(ncclInvalidUsage,
                      "Mismatched NCCL version detected : rank 1 version 22703 rank 0 version 22809")
                  .substr(0, 52),
              "the processes have different versions of NCCL; expec");
    EXPECT_EQ(message(ncclSystemError, ""), "NCCL: what NCCL says of the code");
}

TEST_F(Nccl, AMeetingThatTakesTooLongEndsTheProcess) {
    fake.meeting_hangs = true;
    EXPECT_EXIT(
        make_communicator(third, short_time), testing::ExitedWithCode(1),
        "^[a-z_]+: rank 3: meeting the other 3 processes has not finished for 0.2 s \\(--comm-timeout\\); "
        "another process has ended, hangs or is that "
        "slow\n$");
}

TEST_F(Nccl, AMeetingThatTakesTooLongNamesAProcessThatIsStopped) {
    fake.meeting_hangs = true;
    const std::string address = fmt::format("test{}", getpid());  // no launch has it
    RankProcess first(1, 3, address), second(2, 3, address);
    second.stop();
    const Process process = {.rank = 0,
                             .world_size = 3,
                             .local_rank = 0,
                             .local_size = 3,
                             .launcher = "torchrun",
                             .launch = address + ":1234",
                             .main_address = "127.0.0.1:1235"};
    EXPECT_EXIT(make_communicator(process, short_time), testing::ExitedWithCode(1),
                "rank 0: meeting .* slow; rank 2 is stopped\n$");
}

TEST_F(Nccl, AnOperationThatTakesTooLongEndsTheProcessWhereverItHangs) {
    EXPECT_EXIT(
        {
            const auto communicator = make_communicator(third, short_time);
            communicator->begin({Collective::all_reduce, memory, 10, Collective::fp32}, &stream);
            fake.own.finishes = false;
            fake.own.done = 1;
            communicator->begin({Collective::reduce_scatter, memory, 32, Collective::fp32}, &stream);
            pass(long_time);  // as if in cudaStreamSynchronize
        },
        testing::ExitedWithCode(1),
        "^[a-z_]+: rank 3: operation 2, reduce_scatter of 128 bytes, has not finished for 0.2 s "
        "\\(--comm-timeout\\); .*\n$");
}

TEST_F(Nccl, TheTimeOfAnOperationCountsFromWhenThisProcessIsReady) {
    const auto communicator = make_communicator(third, 1);
    fake.own.finishes = false;
    stream.finishes = false;
    stream.given = 1;
    communicator->begin({Collective::all_reduce, memory, 10, Collective::fp32}, &stream);
    pass(1.5);  // of backward
    stream.done = 1;
    pass(0.1);
    fake.own.done = 1;
    pass(1.5);
}

TEST_F(Nccl, ManyOperationsTogetherMayTakeLonger) {
    const auto communicator = make_communicator(third, 1);
    fake.own.finishes = false;
    for (int i = 0; i < 6; i++)
        communicator->begin({Collective::all_reduce, memory, 10, Collective::fp32}, &stream);
    for (int i = 0; i < 6; i++) {
        pass(0.25);
        fake.own.done++;
    }
}

TEST_F(Nccl, AnAsynchronousErrorEndsTheProcess) {
    EXPECT_EXIT(
        {
            const auto communicator = make_communicator(third, long_time);
            fake.last_error = "NET/IB: Got completion from peer with status=12";
            fake.asynchronous = ncclRemoteError;
            pass(long_time);
        },
        testing::ExitedWithCode(1),
        "^[a-z_]+: rank 3: NCCL: what NCCL says of the code: NET/IB: Got completion from peer with "
        "status=12\n$");
}

TEST_F(Nccl, AbortEndsTheProcessWithItsCode) {
    EXPECT_EXIT(make_communicator(third, long_time)->abort(5), testing::ExitedWithCode(5), "^$");
}

TEST(NcclVersion, IsReadable) { EXPECT_EQ(communicator_library(), "NCCL 2.28.9"); }

}  // namespace
