// The CUDA runtime of the software GPU: the order that it keeps, the orders that it may choose, and what
// it rejects or finds. Every finding is planted.
#include <gtest/gtest.h>
#include <lz4.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

#include "fat_binary.h"
#include "queues.h"
#include "stream.h"

using namespace software_gpu;

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
}

namespace {

constexpr unsigned seeds = 32;
const testing::ExitedWithCode found(86);

// ---- fat binaries

const std::string ptx = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry nothing(.param .u64 nothing_param_0)
.maxntid 256, 1, 1
{
    ret;
}
.visible .entry with_shared_memory()
{
    .reg .b32 %r<2>;
    .shared .align 4 .b8 static_array[4096];
    mov.u32 %r1, static_array;
    ret;
}
)";

template <class T>
void append(std::string& bytes, T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A fat binary as nvcc lays it out: a header, and an entry for each text.
struct FatBinary {
    struct {
        uint32_t magic = 0x466243b1, version = 1;
        const char* data = nullptr;
        void* unused = nullptr;
    } wrapper;
    std::string content, bytes;

    void add(uint16_t kind, unsigned architecture, const std::string& payload, uint64_t flags, size_t packed,
             size_t unpacked) {
        const size_t padded = (payload.size() + 7) / 8 * 8;
        append<uint16_t>(content, kind), append<uint16_t>(content, 0x101), append<uint32_t>(content, 64);
        append<uint64_t>(content, padded), append<uint32_t>(content, packed), append<uint32_t>(content, 64);
        append<uint32_t>(content, 9), append<uint32_t>(content, architecture), append<uint64_t>(content, 64);
        append<uint64_t>(content, flags), append<uint64_t>(content, 0), append<uint64_t>(content, unpacked);
        content += payload + std::string(padded - payload.size(), '\0');
    }
    const void* finished() {
        bytes.clear();
        append<uint32_t>(bytes, 0xba55ed50), append<uint16_t>(bytes, 1), append<uint16_t>(bytes, 16),
            append<uint64_t>(bytes, content.size());
        bytes += content;
        wrapper.data = bytes.data();
        return &wrapper;
    }
};

std::string zstd(const std::string& text) {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
    return packed;
}
std::string lz4(const std::string& text) {
    std::string packed(static_cast<size_t>(LZ4_compressBound(static_cast<int>(text.size()))), '\0');
    packed.resize(static_cast<size_t>(LZ4_compress_default(
        text.data(), packed.data(), static_cast<int>(text.size()), static_cast<int>(packed.size()))));
    return packed;
}

std::string refusal_of(const void* wrapper) {
    try {
        ptx_texts(wrapper);
    } catch (const Fault& fault) { return fault.what(); }
    return "";
}

TEST(FatBinary, HoldsPtxPlainAndCompressed) {
    FatBinary binary;
    binary.add(1, 80, ptx, 0x11, 0, 0);
    binary.add(2, 90, "machine code", 0x11, 0, 0);
    binary.add(1, 90, zstd(ptx), 0x8011, zstd(ptx).size(), ptx.size());
    binary.add(1, 120, lz4(ptx), 0x2011, lz4(ptx).size(), ptx.size());
    const auto texts = ptx_texts(binary.finished());
    ASSERT_EQ(texts.size(), 3u);
    for (size_t i = 0; i < 3; i++) {
        EXPECT_EQ(texts[i].text, ptx) << i;
        EXPECT_EQ(texts[i].architecture, (std::vector<unsigned>{80, 90, 120})[i]);
    }
}

TEST(FatBinary, RefusesWhatItCannotRead) {
    const auto expect_refusal = [](const std::string& what, auto damage) {
        FatBinary binary;
        binary.add(1, 80, ptx, 0x11, 0, 0);
        binary.finished();
        damage(binary);
        EXPECT_NE(refusal_of(&binary.wrapper).find(what), std::string::npos) << what;
    };
    const auto packed = [](std::string text, uint64_t flags, size_t bytes) {
        return [=](FatBinary& binary) {
            binary.content.clear();
            binary.add(1, 80, text, flags, bytes, ptx.size());
            binary.finished();
        };
    };
    const size_t half = zstd(ptx).size() / 2;
    expect_refusal("wrapper", [](FatBinary& binary) { binary.wrapper.magic++; });
    expect_refusal("magic number", [](FatBinary& binary) { binary.bytes[0] ^= 1; });
    expect_refusal("cut off", [](FatBinary& binary) {
        binary.content.resize(binary.content.size() - 8);
        binary.finished();
    });
    expect_refusal("zstd", packed(zstd(ptx).substr(0, half), 0x8011, half));
    expect_refusal("LZ4", packed(lz4(ptx), 0x2011, lz4(ptx).size() / 2));
    expect_refusal("marked as PTX", packed("compressed in another way", 0x10011, 0));
}

// ---- streams and events

// Two streams' commands, each a letter, on queues of their own, which are never destroyed.
struct Streams {
    Queues& queues;
    cudaStream_t a, b;
    std::string order;

    explicit Streams(uint64_t seed) : queues(*new Queues(seed)), a(queues.create()), b(queues.create()) {}
    ~Streams() { queues.synchronize(); }
    void give(cudaStream_t stream, char letter) {
        queues.give(stream,
                    Command{.name = std::string(1, letter), .work = [this, letter] { order += letter; }});
    }
    std::string finished() {
        queues.synchronize();
        return order;
    }
};

std::string of(const std::string& order, const std::string& letters) {
    std::string kept;
    std::copy_if(order.begin(), order.end(), std::back_inserter(kept),
                 [&](char c) { return letters.find(c) != std::string::npos; });
    return kept;
}

std::string two_streams(uint64_t seed) {
    Streams streams(seed);
    for (const char letter : std::string("123")) streams.give(streams.a, letter);
    for (const char letter : std::string("xyz")) streams.give(streams.b, letter);
    return streams.finished();
}

TEST(Streams, EachKeepsItsOrderAndTheSeedMixesThem) {
    std::set<std::string> orders;
    for (unsigned seed = 0; seed < seeds; seed++) {
        const std::string order = two_streams(seed);
        EXPECT_EQ(of(order, "123"), "123") << seed;
        EXPECT_EQ(of(order, "xyz"), "xyz") << seed;
        EXPECT_EQ(order, two_streams(seed)) << "another order of the same seed " << seed;
        orders.insert(order);
    }
    EXPECT_TRUE(orders.contains("123xyz"));
    EXPECT_TRUE(orders.contains("xyz123"));
    EXPECT_GT(orders.size(), 4u);
}

TEST(Streams, WaitForTheRecordBeforeTheWait) {
    for (unsigned seed = 0; seed < seeds; seed++) {
        Streams streams(seed);
        CUevent_st event;
        EXPECT_EQ(streams.queues.wait(streams.b, &event), cudaSuccess);  // never recorded: no wait
        streams.queues.record(&event, streams.a);
        EXPECT_EQ(streams.queues.wait(streams.b, &event), cudaSuccess);
        streams.give(streams.a, '1');
        streams.queues.wait(streams.a, &event);
        streams.give(streams.b, 'x');
        streams.queues.record(&event, streams.a);  // no stream waits for this one
        EXPECT_EQ(streams.finished().size(), 2u);
    }
}

TEST(Streams, TheDeviceRunsAheadOfTheHostOrFallsBehind) {
    std::set<size_t> ran;
    for (unsigned seed = 0; seed < seeds; seed++) {
        Streams streams(seed);
        for (int i = 0; i < 100; i++) streams.give(streams.a, '1');
        const auto paused = streams.queues.pause();
        ran.insert(streams.order.size());
    }
    EXPECT_LT(*ran.begin(), 50u);
    EXPECT_GT(*ran.rbegin(), 50u);
}

TEST(Streams, SynchronisingOneWaitsForItAlone) {
    bool other_was_left = false;
    for (unsigned seed = 0; seed < seeds; seed++) {
        Streams streams(seed);
        streams.give(streams.a, '1'), streams.give(streams.b, 'x'), streams.give(streams.b, 'y');
        streams.queues.synchronize(streams.a);
        const auto paused = streams.queues.pause();
        EXPECT_EQ(of(streams.order, "1"), "1") << seed;
        other_was_left = other_was_left || of(streams.order, "xy").size() < 2;
    }
    EXPECT_TRUE(other_was_left);
}

TEST(Streams, RunWhileTheHostWaitsElsewhere) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
    int value = 0;
    enqueue(
        stream, [&] { value = 1; }, "work");
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    while (cudaEventQuery(event) == cudaErrorNotReady) {}
    EXPECT_EQ(value, 1);
    cudaEventDestroy(event), cudaStreamDestroy(stream);
}

TEST(Streams, EventsTellPositiveTimes) {
    cudaEvent_t before = nullptr, after = nullptr, without = nullptr;
    float ms = 0;
    cudaEventCreate(&before), cudaEventCreate(&after),
        cudaEventCreateWithFlags(&without, cudaEventDisableTiming);
    cudaEventRecord(before, nullptr);
    EXPECT_EQ(cudaEventElapsedTime(&ms, before, after), cudaErrorInvalidResourceHandle);  // not recorded
    cudaEventRecord(after, nullptr), cudaEventRecord(without, nullptr);
    ASSERT_EQ(cudaEventSynchronize(without), cudaSuccess);
    EXPECT_EQ(cudaEventElapsedTime(&ms, before, after), cudaSuccess);
    EXPECT_GT(ms, 0);
    EXPECT_LT(ms, 10000);
    EXPECT_EQ(cudaEventElapsedTime(&ms, before, without), cudaErrorInvalidResourceHandle);
    for (const auto event : {before, after, without}) cudaEventDestroy(event);
    cudaGetLastError();
}

// ---- copies

struct Device {
    void* memory = nullptr;
    explicit Device(size_t bytes) { EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess); }
    ~Device() { cudaFree(memory); }
    operator char*() const { return static_cast<char*>(memory); }
};
struct Pinned {
    void* memory = nullptr;
    explicit Pinned(size_t bytes) { EXPECT_EQ(cudaMallocHost(&memory, bytes), cudaSuccess); }
    ~Pinned() { cudaFreeHost(memory); }
    operator char*() const { return static_cast<char*>(memory); }
};
struct Stream {
    cudaStream_t stream = nullptr;
    Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess); }
    ~Stream() { cudaStreamDestroy(stream); }
    operator cudaStream_t() const { return stream; }
};

TEST(Copies, FromPageableMemoryAreStagedAndToItWaitedFor) {
    const Device device(8);
    std::string text = "original", back(8, ' ');
    ASSERT_EQ(cudaMemcpyAsync(device, text.data(), 8, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
    text = "replaced";
    ASSERT_EQ(cudaMemcpyAsync(back.data(), device, 8, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    EXPECT_EQ(back, "original");
}

// A host that changes pinned memory too early must see it.
TEST(Copies, FromPinnedMemoryReadItWhenTheyRun) {
    const Device device(8);
    const Pinned pinned(8);
    std::string back(8, ' ');
    std::set<std::string> seen;
    for (int i = 0; i < 100; i++) {
        std::memcpy(pinned, "original", 8);
        ASSERT_EQ(cudaMemcpyAsync(device, pinned, 8, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
        std::memcpy(pinned, "replaced", 8);
        ASSERT_EQ(cudaMemcpyAsync(back.data(), device, 8, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
        seen.insert(back);
    }
    EXPECT_TRUE(seen.contains("replaced"));
}

TEST(Copies, MustGoTheWayTheySay) {
    const Device device(8);
    char host[8] = {};
    for (const auto kind : {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice})
        EXPECT_EQ(cudaMemcpyAsync(device, host, 8, kind, nullptr), cudaErrorInvalidValue) << kind;
    for (const auto kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice})
        EXPECT_EQ(cudaMemcpyAsync(host, device, 8, kind, nullptr), cudaErrorInvalidValue) << kind;
    EXPECT_EQ(cudaMemsetAsync(host, 0, 8, nullptr), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CopiesDeathTest, BeyondAnAllocationAreFound) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const Device device(100), other(200);
    static char host[300];
    EXPECT_EXIT(
        (cudaMemcpyAsync(device, host, 101, cudaMemcpyHostToDevice, nullptr), cudaStreamSynchronize(nullptr)),
        found, "software GPU: a copy of 101 bytes to the device");
    EXPECT_EXIT((cudaMemsetAsync(device, 0, 101, nullptr), cudaStreamSynchronize(nullptr)), found,
                "software GPU: a fill of 101 bytes");
    EXPECT_EXIT((cudaMemsetAsync(device, 0, 100, nullptr),
                 cudaMemcpyAsync(host, device, 101, cudaMemcpyDeviceToHost, nullptr)),
                found, "software GPU: a copy of 101 bytes to the host");
    EXPECT_EXIT((cudaMemsetAsync(other, 0, 200, nullptr),
                 cudaMemcpyAsync(device, other, 101, cudaMemcpyDeviceToDevice, nullptr),
                 cudaStreamSynchronize(nullptr)),
                found, "software GPU: a copy of 101 bytes on the device");
}

TEST(CopiesDeathTest, OfWhatWasNeverWrittenAreFound) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const Device device(100), other(100);
    static char host[100];
    EXPECT_EXIT((cudaMemsetAsync(device, 0, 99, nullptr),
                 cudaMemcpyAsync(host, device, 100, cudaMemcpyDeviceToHost, nullptr)),
                found, "software GPU: a copy of 100 bytes to the host.*never written");
    // A copy on the device also copies which bytes were never written.
    EXPECT_EXIT((cudaMemsetAsync(device, 0, 50, nullptr), cudaMemsetAsync(other, 0, 100, nullptr),
                 cudaMemcpyAsync(other, device, 100, cudaMemcpyDeviceToDevice, nullptr),
                 cudaMemcpyAsync(host, other, 100, cudaMemcpyDeviceToHost, nullptr)),
                found, "software GPU: a copy of 100 bytes to the host.*never written");
    EXPECT_EQ(cudaMemsetAsync(device, 7, 100, nullptr), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(host, device, 100, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
    EXPECT_EQ(host[99], 7);
}

void copy_in_two_streams(bool event_between) {
    const Device device(100);
    const Pinned pinned(100);
    const Stream a, b;
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMemsetAsync(device, 1, 100, a);
    cudaEventRecord(event, a);
    if (event_between) cudaStreamWaitEvent(b, event, 0);
    cudaMemcpyAsync(pinned, device, 100, cudaMemcpyDeviceToHost, b);
    cudaStreamSynchronize(b);
    cudaEventDestroy(event);
}
TEST(CopiesDeathTest, OfTwoStreamsWithoutAnEventBetweenAreFoundUnderEverySeed) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    copy_in_two_streams(true);
    EXPECT_EXIT(
        copy_in_two_streams(false), found,
        "a fill of 100 bytes and a copy of 100 bytes to the host touch the same bytes in two streams");
}

TEST(StreamsDeathTest, ErrorsOfWorkEndTheProcess) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT((enqueue(
                     nullptr, [] { throw Fault("a finding"); }, "a product"),
                 cudaStreamSynchronize(nullptr)),
                found, "^software GPU: a finding\n$");
    EXPECT_EXIT((enqueue(
                     nullptr, [] { throw std::runtime_error("an error"); }, "a product"),
                 cudaStreamSynchronize(nullptr)),
                found, "^software GPU: a product: an error\n$");
}

TEST(Memory, IsRefusedBeyondTheDevices) {
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, total + 1), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    {
        const Device device(1000);
        size_t left = 0;
        cudaMemGetInfo(&left, &total);
        EXPECT_EQ(left, free - 1000);
        EXPECT_EQ(cudaFree(device + 8), cudaErrorInvalidValue);
    }
    cudaGetLastError();
}

// ---- graphs

TEST(Graphs, ReplayInOrderWhatWasCaptured) {
    const Stream stream;
    std::string order;
    const auto give = [&](char letter) {
        enqueue(
            stream, [&order, letter] { order += letter; }, "work");
    };
    give('0');
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(is_capturing(stream));
    for (const char letter : std::string("123")) give(letter);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_FALSE(is_capturing(stream));
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    give('a');
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    give('b');
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    cudaGraphExecDestroy(executable);  // a launched graph still runs
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(order, "0a123b123");
}

TEST(Graphs, AreBrokenByCallsThatACaptureForbids) {
    const Stream stream, other;
    const Device device(8);
    cudaEvent_t event = nullptr;
    cudaEventCreate(&event);
    cudaEventRecord(event, other);
    void* memory = nullptr;
    const std::vector<std::pair<const char*, std::function<cudaError_t()>>> calls = {
        {"cudaMalloc", [&] { return cudaMalloc(&memory, 8); }},
        {"cudaMallocHost", [&] { return cudaMallocHost(&memory, 8); }},
        {"cudaFree", [&] { return cudaFree(device); }},
        {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream); }},
        {"cudaEventSynchronize", [&] { return cudaEventSynchronize(event); }},
        {"cudaEventQuery", [&] { return cudaEventQuery(event); }}};
    for (const auto& [name, call] : calls) {
        SCOPED_TRACE(name);
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
        EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaStreamIsCapturing(stream, &status);
        EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
        cudaGraph_t graph = nullptr;
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        EXPECT_EQ(graph, nullptr);
        cudaStreamIsCapturing(stream, &status);
        EXPECT_EQ(status, cudaStreamCaptureStatusNone);
        cudaGetLastError();
    }
    cudaEventDestroy(event);
}

TEST(Graphs, DoNotWaitForEventsFromOutside) {
    const Stream stream, other;
    cudaEvent_t event = nullptr;
    cudaEventCreate(&event);
    cudaEventRecord(event, other);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal),
              cudaErrorIllegalState);  // one a thread
    EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal),
              cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    cudaEventDestroy(event);
    cudaGetLastError();
}

// ---- settings

TEST(Settings, AreWhatTheVariableSays) {
    const Settings settings = Settings::parse("order=descending,seed=7,count,multiprocessors=4");
    EXPECT_EQ(settings.order, Settings::Order::descending);
    EXPECT_EQ(settings.seed, 7u);
    EXPECT_TRUE(settings.count);
    EXPECT_EQ(settings.multiprocessors, 4);
    for (const char* const wrong :
         {"multiprocessors=0", "multiprocessors=four", "seed=", "counts", "order=up"})
        EXPECT_THROW(Settings::parse(wrong), Fault) << wrong;
}

// ---- launches

struct Registered {
    char nothing = 0, with_shared_memory = 0, absent = 0;  // whose addresses stand for the functions
    Registered() {
        static FatBinary binary;
        binary.add(1, 80, zstd(ptx), 0x8011, zstd(ptx).size(), ptx.size());
        void** const handle = __cudaRegisterFatBinary(const_cast<void*>(binary.finished()));
        const auto add = [&](const char& function, const char* name) {
            __cudaRegisterFunction(handle, &function, const_cast<char*>(name), name, -1, nullptr, nullptr,
                                   nullptr, nullptr, nullptr);
        };
        add(nothing, "nothing"), add(with_shared_memory, "with_shared_memory"), add(absent, "absent");
    }
};
Registered& registered() {
    static Registered all;
    return all;
}

cudaError_t launch(const char& function, dim3 grid, dim3 block, size_t shared_bytes = 0) {
    void* pointer = nullptr;
    void* arguments[] = {&pointer, nullptr};
    const cudaError_t status = cudaLaunchKernel(&function, grid, block, arguments, shared_bytes, nullptr);
    EXPECT_EQ(cudaGetLastError(), status);
    return status;
}

TEST(Launches, AreRefusedAsAGpuRefusesThem) {
    const char& nothing = registered().nothing;
    EXPECT_EQ(launch(nothing, 1, 256), cudaSuccess);
    EXPECT_EQ(launch(nothing, dim3(1, 2, 3), dim3(8, 4, 2)), cudaSuccess);
    EXPECT_EQ(launch(nothing, 0, 32), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(nothing, dim3(1, 65536), 32), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(nothing, 1, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(nothing, 1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch(nothing, 1, 257), cudaErrorLaunchOutOfResources);  // its .maxntid
    EXPECT_EQ(launch(registered().with_shared_memory, 1, 1024), cudaSuccess);
    EXPECT_EQ(launch(registered().with_shared_memory, 1, 1025), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

TEST(Launches, ThatNeedMoreRegistersThanAMultiprocessorHasAreRefused) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // 65 registers are 9 times 256 for a warp: 28 warps fit. 64 are 8 times 256, and 32 warps fit.
    const auto launch_with = [](unsigned registers) {
        const std::string path = testing::TempDir() + "registers_" + std::to_string(getpid());
        std::ofstream(path) << "another 255\nwith_shared_memory " << registers << '\n';
        setenv("SOFTWARE_GPU_REGISTERS", path.c_str(), 1);
        const char& kernel = registered().with_shared_memory;
        const cudaError_t smaller = launch(kernel, 1, 896), larger = launch(kernel, 1, 1024);
        std::fprintf(stderr, "896 threads: %d, 1024: %d\n", smaller, larger);
        std::remove(path.c_str());
        std::_Exit(cudaStreamSynchronize(nullptr));
    };
    const auto well = testing::ExitedWithCode(0);
    const std::string refused = std::to_string(cudaErrorLaunchOutOfResources);
    EXPECT_EXIT(launch_with(64), well, "896 threads: 0, 1024: 0");
    EXPECT_EXIT(launch_with(65), well, "896 threads: 0, 1024: " + refused);
}

TEST(Launches, HaveTheSharedMemoryThatWasAskedFor) {
    const char& kernel = registered().with_shared_memory;  // 4096 static bytes
    constexpr int kilobyte = 1024;
    EXPECT_EQ(launch(kernel, 1, 32, 44 * kilobyte), cudaSuccess);
    EXPECT_EQ(launch(kernel, 1, 32, 48 * kilobyte + 1), cudaErrorInvalidValue);
    const auto ask = [&](int bytes) {
        const cudaError_t status =
            cudaFuncSetAttribute(&kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        EXPECT_EQ(cudaGetLastError(), status);
        return status;
    };
    EXPECT_EQ(ask(224 * kilobyte), cudaErrorInvalidValue);
    EXPECT_EQ(ask(-1), cudaErrorInvalidValue);
    EXPECT_EQ(ask(100 * kilobyte), cudaSuccess);
    EXPECT_EQ(launch(kernel, 1, 32, 100 * kilobyte), cudaSuccess);
    EXPECT_EQ(launch(kernel, 1, 32, 100 * kilobyte + 1), cudaErrorInvalidValue);
    EXPECT_EQ(ask(223 * kilobyte), cudaSuccess);
    EXPECT_EQ(launch(kernel, 1, 32, 223 * kilobyte), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

TEST(LaunchesDeathTest, OfWhatIsNoKernelAreFound) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    static const char unknown = 0;
    EXPECT_EXIT(launch(registered().absent, 1, 32), found, "software GPU: absent is not in the PTX");
    EXPECT_EXIT(launch(unknown, 1, 32), found,
                "software GPU: a function is launched that no object registered");
}

}  // namespace
