// cuda_runtime.cpp: the CUDA runtime's interface, as far as the GPU's programs use it, over the software GPU.
//   Documented in https://docs.nvidia.com/cuda/cuda-runtime-api/. It reports eight H200, one per process.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "fat_binary.h"
#include "queues.h"
#include "stream.h"
#include "trace.h"

namespace software_gpu {
namespace {

constexpr int devices = 8;
constexpr int l2_bytes = 1 << 20;  // not 50 MB: they are overwritten twice before every timed product
constexpr size_t device_bytes = size_t{8} << 30;
constexpr size_t shared_bytes_of_a_block = 227 * 1024, shared_bytes_of_a_multiprocessor = 228 * 1024;
constexpr unsigned threads_of_a_block = 1024;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

// Guards the following members and the allocations; taken after Queues::pause.
std::mutex host_mutex;
std::map<uintptr_t, size_t> pinned;
std::map<std::string, Counters> counted;

cudaError_t result(cudaError_t status) {
    if (status != cudaSuccess) last_error = status;
    return status;
}

// Runs the body of an interface function. A finding ends the process here.
template <class Work>
cudaError_t call(const Work& work) {
    try {
        return result(work());
    } catch (const std::exception& fault) { stop(fault); }
}

// The same, for calls that a capturing thread must not make.
template <class Work>
cudaError_t call_outside_of_capture(const std::string& name, const Work& work) {
    trace(name);
    if (capture_mode != cudaStreamCaptureModeRelaxed && Queues::instance().forbidden())
        return result(cudaErrorStreamCaptureUnsupported);
    return call(work);
}

// ---- modules and kernels

struct Binary {
    const void* wrapper;
    std::optional<Module> module;
};

// The kernels that nvcc's code registers before main begins. A module is read when one of its kernels is
// first used.
class Kernels {
public:
    static Kernels& instance() {
        static auto* const kernels = new Kernels;
        return *kernels;
    }
    Binary* add(const void* wrapper) { return &binaries_.emplace_back(Binary{wrapper, {}}); }
    void add(Binary* binary, const void* function, const char* mangled) {
        functions_.emplace(function, Function{binary, mangled});
    }

    Kernel& find(const void* function) {
        if (Kernel* const known = function_of(function).kernel) return *known;
        const auto paused = Queues::instance().pause();
        const std::lock_guard lock(host_mutex);
        Function& f = functions_.at(function);
        if (!f.binary->module) f.binary->module.emplace(newest_ptx(*f.binary), device_memory());
        f.kernel = f.binary->module->find(f.mangled);
        if (!f.kernel) throw Fault(fmt::format("{} is not in the PTX of its object", f.mangled));
        return *f.kernel;
    }

private:
    struct Function {
        Binary* binary;
        std::string mangled;
        Kernel* kernel = nullptr;
    };
    Function function_of(const void* function) {
        const std::lock_guard lock(host_mutex);
        const auto found = functions_.find(function);
        if (found == functions_.end())
            throw Fault("a function is launched that no object registered as a kernel");
        return found->second;
    }
    static std::string newest_ptx(const Binary& binary) {
        std::vector<PtxText> texts = ptx_texts(binary.wrapper);
        if (texts.empty())
            throw Fault("an object holds no PTX, only machine code; expected an architecture without -real");
        return std::max_element(texts.begin(), texts.end(),
                                [](auto& a, auto& b) { return a.architecture < b.architecture; })
            ->text;
    }

    std::deque<Binary> binaries_;
    std::map<const void*, Function> functions_;  // of several objects that hold the same one, the first's
};

// ---- counters

void add(Counters::Transfers& sum, const Counters::Transfers& more) {
    sum.requests += more.requests, sum.sectors += more.sectors, sum.least_sectors += more.least_sectors;
    sum.bytes += more.bytes, sum.distinct_bytes += more.distinct_bytes;
}
void add(Counters& sum, const Counters& more) {
    sum.launches += more.launches, sum.blocks += more.blocks, sum.warps += more.warps;
    sum.threads_a_block = std::max(sum.threads_a_block, more.threads_a_block);
    sum.dynamic_shared_bytes = std::max(sum.dynamic_shared_bytes, more.dynamic_shared_bytes);
    for (const auto& [type, count] : more.instructions) sum.instructions[type] += count;
    add(sum.loads, more.loads), add(sum.stores, more.stores);
    sum.shared_requests += more.shared_requests, sum.shared_wavefronts += more.shared_wavefronts;
    sum.least_shared_wavefronts += more.least_shared_wavefronts;
}
nlohmann::json to_json(const Counters::Transfers& t) {
    return {{"requests", t.requests},
            {"sectors", t.sectors},
            {"least_sectors", t.least_sectors},
            {"bytes", t.bytes},
            {"distinct_bytes", t.distinct_bytes}};
}
nlohmann::json to_json(const Counters& c) {
    return {{"launches", c.launches},
            {"blocks", c.blocks},
            {"warps", c.warps},
            {"threads_a_block", c.threads_a_block},
            {"dynamic_shared_bytes", c.dynamic_shared_bytes},
            {"instructions", c.instructions},
            {"loads", to_json(c.loads)},
            {"stores", to_json(c.stores)},
            {"shared_requests", c.shared_requests},
            {"shared_wavefronts", c.shared_wavefronts},
            {"least_shared_wavefronts", c.least_shared_wavefronts}};
}

// {"kernel": {counters}}, to the file that SOFTWARE_GPU_COUNTERS names.
void write_counters() {
    const char* const path = std::getenv("SOFTWARE_GPU_COUNTERS");
    const std::unique_lock lock(host_mutex, std::try_to_lock);  // the finding's thread may hold the lock
    if (!path || !lock || counted.empty()) return;
    nlohmann::json all = nlohmann::json::object();
    for (const auto& [name, counters] : counted) all[name] = to_json(counters);
    std::ofstream(path) << all.dump(1) << '\n';
}

// ---- launches

// A thread's registers by the mangled names of kernels, as in the machine code: from the file that
// SOFTWARE_GPU_REGISTERS names, or registers.txt beside the program. Kernels that are not listed are not
// checked.
const std::map<std::string, unsigned>& registers_of_threads() {
    static const auto read = [] {
        std::map<std::string, unsigned> all;
        const char* const named = std::getenv("SOFTWARE_GPU_REGISTERS");
        const auto beside = std::filesystem::read_symlink("/proc/self/exe").replace_filename("registers.txt");
        std::ifstream file(named ? named : beside);
        std::string kernel;
        for (unsigned registers = 0; file >> kernel >> registers;) all[kernel] = registers;
        return all;
    }();
    return read;
}

// Each of the four parts of a multiprocessor has 16,384 registers, which are allocated to warps in units
// of 256.
bool registers_suffice(const Kernel& kernel, size_t threads) {
    const auto known = registers_of_threads().find(kernel.mangled);
    if (known == registers_of_threads().end() || known->second == 0) return true;
    const size_t of_warp = (known->second * size_t{32} + 255) / 256 * 256;
    return (threads + 31) / 32 <= 4 * (16384 / of_warp);
}

// The error with which the CUDA runtime refuses a launch at once.
cudaError_t refusal(const Kernel& kernel, dim3 grid, dim3 block, size_t dynamic_shared_bytes) {
    const size_t threads = size_t{block.x} * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) return cudaErrorInvalidConfiguration;
    if (grid.x > 0x7fffffff || grid.y > 0xffff || grid.z > 0xffff) return cudaErrorInvalidConfiguration;
    if (threads > threads_of_a_block || block.z > 64) return cudaErrorInvalidConfiguration;
    if (threads > kernel.max_threads || !registers_suffice(kernel, threads))
        return cudaErrorLaunchOutOfResources;
    if (dynamic_shared_bytes > kernel.max_dynamic_shared_bytes) return cudaErrorInvalidValue;
    if (dynamic_shared_bytes + kernel.static_shared_bytes > shared_bytes_of_a_block)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

// The launch's line in the trace, with the first 8 bytes of each argument.
std::string traced(const Kernel& kernel, const Launch& what) {
    std::string text = fmt::format("{} <<<{} {} {}, {}, {}>>>", kernel.name, what.grid.x, what.grid.y,
                                   what.grid.z, what.block.x, what.dynamic_shared_bytes);
    for (const Parameter& parameter : kernel.parameters) {
        uint64_t value = 0;
        std::memcpy(&value, what.arguments.data() + parameter.offset, std::min<size_t>(parameter.bytes, 8));
        text += fmt::format(" {:x}", value);
    }
    return text;
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                   cudaStream_t stream) {
    return call([&] {
        if (refuses("captured launch") && Queues::instance().forbidden())
            return cudaErrorStreamCaptureUnsupported;
        const Kernel& kernel = Kernels::instance().find(function);
        const cudaError_t status = refusal(kernel, grid, block, shared_bytes);
        if (status != cudaSuccess) return status;
        Launch what{{grid.x, grid.y, grid.z},
                    {block.x, block.y, block.z},
                    shared_bytes,
                    pack_arguments(kernel, arguments)};
        std::string name = traces() ? traced(kernel, what) : kernel.name;
        const auto work = [kernel, what = std::move(what)] {
            if (!settings().count) return run(kernel, what, device_memory(), settings());
            Counters counters;
            run(kernel, what, device_memory(), settings(), &counters);
            const std::lock_guard lock(host_mutex);
            add(counted[kernel.name], counters);
        };
        Queues::instance().give(stream, Command{.name = std::move(name), .work = work});
        return cudaSuccess;
    });
}

struct Configuration {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};
thread_local Configuration configuration;

// ---- memory

bool is_on_device(const void* address) {
    const std::lock_guard lock(host_mutex);
    return device_memory().find(address) != nullptr;
}
bool is_pinned(const void* address, size_t bytes) {
    const std::lock_guard lock(host_mutex);
    const auto after = pinned.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (after == pinned.begin()) return false;
    const auto [begin, size] = *std::prev(after);
    return reinterpret_cast<uintptr_t>(address) + bytes <= begin + size;
}

Range range(const void* begin, size_t bytes, bool writes) {
    return {static_cast<const std::byte*>(begin), bytes, writes};
}

cudaError_t copy_to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    Command command{.name = fmt::format("a copy of {} bytes to the device", bytes),
                    .ranges = {range(to, bytes, true)}};
    // Pageable memory is staged before the call returns; a capture keeps only its address.
    std::shared_ptr<std::vector<std::byte>> staged;
    if (is_pinned(from, bytes) || is_capturing(stream)) command.ranges.push_back(range(from, bytes, false));
    else
        staged = std::make_shared<std::vector<std::byte>>(static_cast<const std::byte*>(from),
                                                          static_cast<const std::byte*>(from) + bytes);
    command.work = [=, name = command.name] {
        device_memory().note_write(to, bytes, name);
        std::memcpy(to, staged ? staged->data() : from, bytes);
    };
    Queues::instance().give(stream, std::move(command));
    return cudaSuccess;
}

cudaError_t copy_to_host(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    Command command{.name = fmt::format("a copy of {} bytes to the host", bytes)};
    command.ranges = {range(from, bytes, false), range(to, bytes, true)};
    command.work = [=, name = command.name] {
        device_memory().check_read(from, bytes, name);
        std::memcpy(to, from, bytes);
    };
    Queues::instance().give(stream, std::move(command));
    if (!is_pinned(to, bytes) && !is_capturing(stream)) Queues::instance().synchronize(stream);
    return cudaSuccess;
}

cudaError_t copy_on_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    Command command{.name = fmt::format("a copy of {} bytes on the device", bytes)};
    command.ranges = {range(from, bytes, false), range(to, bytes, true)};
    command.work = [=, name = command.name] {
        device_memory().note_copy(to, from, bytes, name);
        std::memmove(to, from, bytes);
    };
    Queues::instance().give(stream, std::move(command));
    return cudaSuccess;
}

}  // namespace

const Settings& settings() {
    static const Settings parsed = [] {
        const char* const text = std::getenv("SOFTWARE_GPU");
        try {
            const Settings read = Settings::parse(text ? text : "");
            if (read.count) std::atexit(write_counters);
            return read;
        } catch (const std::exception& fault) { stop(fault); }
    }();
    return parsed;
}

Memory& device_memory() {
    static auto* const memory = new Memory;  // work may outlive main
    return *memory;
}

void stop(const std::exception& fault) {
    std::fflush(stdout);
    fmt::print(stderr, "software GPU: {}\n", fault.what());
    std::fflush(stderr);
    write_counters();
    _exit(86);
}

}  // namespace software_gpu

using namespace software_gpu;

extern "C" {

// ---- what nvcc makes of kernels and launches
void** __cudaRegisterFatBinary(void* wrapper) {
    return reinterpret_cast<void**>(Kernels::instance().add(wrapper));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
    Kernels::instance().add(reinterpret_cast<Binary*>(binary), function, name);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    return configuration = {grid, block, shared_bytes, stream}, 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
    *grid = configuration.grid, *block = configuration.block, *shared_bytes = configuration.shared_bytes;
    return *static_cast<cudaStream_t*>(stream) = configuration.stream, cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    return *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function)), cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
    return launch(kernel, grid, block, arguments, shared_bytes, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
    return launch(function, grid, block, arguments, shared_bytes, stream);
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    return call([&] {
        if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
            throw Fault(fmt::format("attribute {} of a kernel is not imitated", int(attribute)));
        Kernel& kernel = Kernels::instance().find(function);
        if (value < 0 || static_cast<size_t>(value) + kernel.static_shared_bytes > shared_bytes_of_a_block)
            return cudaErrorInvalidValue;
        kernel.max_dynamic_shared_bytes = static_cast<size_t>(value);
        return cudaSuccess;
    });
}

// ---- device and errors
cudaError_t cudaGetDeviceCount(int* count) { return *count = devices, cudaSuccess; }
cudaError_t cudaGetDevice(int* number) { return *number = device, cudaSuccess; }
cudaError_t cudaSetDevice(int number) {
    if (number < 0 || number >= devices) return result(cudaErrorInvalidDevice);
    return device = number, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = {};
    std::strcpy(properties->name, "software GPU");
    properties->major = 9;
    properties->multiProcessorCount = settings().multiprocessors;
    properties->l2CacheSize = l2_bytes;
    properties->totalGlobalMem = device_bytes;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = threads_of_a_block;
    properties->sharedMemPerBlock = 48 * 1024;
    properties->sharedMemPerBlockOptin = shared_bytes_of_a_block;
    properties->sharedMemPerMultiprocessor = shared_bytes_of_a_multiprocessor;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return *value = shared_bytes_of_a_block, cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            return *value = shared_bytes_of_a_multiprocessor, cudaSuccess;
        case cudaDevAttrMultiProcessorCount: return *value = settings().multiprocessors, cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor: return *value = 9, cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor: return *value = 0, cudaSuccess;
        default: stop(Fault(fmt::format("attribute {} of the device is not imitated", int(attribute))));
    }
}
// NVML has no GPU there.
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int number) {
    return std::snprintf(id, static_cast<size_t>(length), "FFFF:%02X:00.0", number), cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    const std::lock_guard lock(host_mutex);
    return *free = device_bytes - device_memory().allocated(), *total = device_bytes, cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        case cudaErrorIllegalState: return "the operation cannot be performed in the present state";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated:
            return "operation failed due to a previous error during capture";
        case cudaErrorStreamCaptureIsolation:
            return "dependency created on uncaptured work in another stream";
        default: return "an error without a name";
    }
}

// ---- memory
cudaError_t cudaMalloc(void** memory, size_t bytes) {
    return call_outside_of_capture(fmt::format("cudaMalloc {}", bytes), [&] {
        const auto paused = Queues::instance().pause();
        const std::lock_guard lock(host_mutex);
        *memory = nullptr;
        if (bytes == 0) return cudaSuccess;
        if (bytes > device_bytes - device_memory().allocated()) return cudaErrorMemoryAllocation;
        *memory = device_memory().allocate(bytes);
        return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
    });
}
cudaError_t cudaFree(void* memory) {
    if (!memory) return cudaSuccess;
    return call_outside_of_capture("cudaFree", [&] {
        Queues::instance().synchronize();
        const auto paused = Queues::instance().pause();
        const std::lock_guard lock(host_mutex);
        return device_memory().release(memory) ? cudaSuccess : cudaErrorInvalidValue;
    });
}
// Filled with 0xFF, which a test cannot mistake for data that a copy has not yet brought.
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
    return call_outside_of_capture(fmt::format("cudaMallocHost {}", bytes), [&] {
        *memory = std::aligned_alloc(4096, (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096);
        if (!*memory) return cudaErrorMemoryAllocation;
        std::memset(*memory, 0xFF, bytes);
        const std::lock_guard lock(host_mutex);
        pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
        return cudaSuccess;
    });
}
cudaError_t cudaFreeHost(void* memory) {
    if (!memory) return cudaSuccess;
    return call_outside_of_capture("cudaFreeHost", [&] {
        Queues::instance().synchronize();
        const std::lock_guard lock(host_mutex);
        if (pinned.erase(reinterpret_cast<uintptr_t>(memory)) == 0) return cudaErrorInvalidValue;
        std::free(memory);
        return cudaSuccess;
    });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return call([&] {
        if (bytes == 0) return cudaSuccess;
        const bool reads_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
        const bool writes_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        if (is_on_device(from) != reads_device || is_on_device(to) != writes_device)
            return cudaErrorInvalidValue;
        if (!reads_device) return copy_to_device(to, from, bytes, stream);
        return writes_device ? copy_on_device(to, from, bytes, stream)
                             : copy_to_host(to, from, bytes, stream);
    });
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
    return call([&] {
        if (bytes == 0) return cudaSuccess;
        if (!is_on_device(memory)) return cudaErrorInvalidValue;
        Command command{.name = fmt::format("a fill of {} bytes", bytes),
                        .ranges = {range(memory, bytes, true)}};
        command.work = [=, name = command.name] {
            device_memory().note_write(memory, bytes, name);
            std::memset(memory, value, bytes);
        };
        Queues::instance().give(stream, std::move(command));
        return cudaSuccess;
    });
}

// ---- streams and events
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    if (flags != cudaStreamNonBlocking)
        stop(Fault("streams that wait for the default stream are not imitated"));
    *stream = Queues::instance().create();
    trace(fmt::format("stream {} of priority {}", fmt::ptr(*stream), priority));
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream) return result(cudaErrorInvalidResourceHandle);
    return Queues::instance().destroy(stream), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return call_outside_of_capture("cudaStreamSynchronize",
                                   [&] { return Queues::instance().synchronize(stream), cudaSuccess; });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    trace(fmt::format("stream {} waits for event {}", fmt::ptr(stream), fmt::ptr(event)));
    return call([&] { return Queues::instance().wait(stream, event); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    trace("cudaEventCreate");
    *event = new CUevent_st;
    (*event)->state->has_time = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (!event) return result(cudaErrorInvalidResourceHandle);
    return delete event, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    trace(fmt::format("record event {} in stream {}", fmt::ptr(event), fmt::ptr(stream)));
    return call([&] { return Queues::instance().record(event, stream), cudaSuccess; });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call_outside_of_capture(
        "", [&] { return Queues::instance().is_over(event) ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return call_outside_of_capture(
        Queues::instance().work_follows(event) ? "wait for an event that work follows" : "wait for all work",
        [&] { return Queues::instance().synchronize(event), cudaSuccess; });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t stop) {
    return call([&] { return Queues::instance().elapsed(ms, start, stop); });
}

// ---- graphs
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return std::swap(capture_mode, *mode), cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    if (mode != cudaStreamCaptureModeThreadLocal)
        stop(Fault("captures that concern other threads are not imitated"));
    trace("begin a capture");
    if (!stream) return result(cudaErrorStreamCaptureUnsupported);  // the legacy default stream
    if (refuses("cudaStreamBeginCapture")) return result(cudaErrorIllegalState);
    return result(Queues::instance().begin_capture(stream));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return *status = Queues::instance().capture_status(stream), cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    if (Queues::instance().capture_status(stream) == cudaStreamCaptureStatusNone)
        return result(cudaErrorIllegalState);
    const auto commands = Queues::instance().end_capture(stream);
    if (!commands || refuses("cudaStreamEndCapture")) return result(cudaErrorStreamCaptureInvalidated);
    return *graph = new CUgraph_st{*commands}, cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    if (refuses("cudaGraphInstantiate")) return result(cudaErrorMemoryAllocation);
    return *executable = new CUgraphExec_st{graph->commands}, cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    trace(fmt::format("graph {}", fmt::ptr(executable)));
    return call([&] { return Queues::instance().give(stream, executable->commands), cudaSuccess; });
}

// ---- gaps of an arena: the linker sends simt's calls here (--wrap)
void __wrap__ZN4simt10poison_gapEPvm(void* memory, size_t bytes) {
    const auto paused = Queues::instance().pause();
    device_memory().poison_gap(memory, bytes);
}
void __wrap__ZN4simt12unpoison_gapEPvm(void* memory, size_t bytes) {
    const auto paused = Queues::instance().pause();
    device_memory().unpoison_gap(memory, bytes);
}

}  // extern "C"
