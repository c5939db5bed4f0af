// device_cuda.cpp: device.h on the GPU, by the CUDA runtime
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

#include "kernels/simt/device.h"
#include "system/error.h"

namespace simt {
namespace {

// The runtime keeps an error until cudaGetLastError is called, and libraries call it after their launches,
// so an error that is reported here is also cleared. (An error that has broken the GPU's context stays.)
[[noreturn]] void fail(cudaError_t status, const std::string& what) {
    cudaGetLastError();
    throw Error(fmt::format("CUDA: {}: {}", what, cudaGetErrorString(status)));
}
void check(cudaError_t status, const char* what) {
    if (status != cudaSuccess) fail(status, what);
}

}  // namespace

bool is_gpu() { return true; }

void select_device(int local_rank, int local_size) {
    CHECK(local_rank >= 0 && local_rank < local_size, "process {} of {} on this machine; expected 0 to {}",
          local_rank, local_size, local_size - 1);
    int count = 0;
    check(cudaGetDeviceCount(&count), "no GPU can be used");
    // Some launchers show each process only its own GPU.
    if (count == 1 && std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) {
        local_rank = 0;
        local_size = 1;
    }
    CHECK(local_size <= count, "{} processes on a machine with {} GPU{}; expected at most one process a GPU",
          local_size, count, count == 1 ? "" : "s");
    check(cudaSetDevice(local_rank), "selecting the GPU");
}

void unpin_this_thread() {}

DeviceInfo device_info() {
    int device = 0;
    cudaDeviceProp properties{};
    check(cudaGetDevice(&device), "finding the selected GPU");
    check(cudaGetDeviceProperties(&properties, device), "reading the GPU's properties");
    DeviceInfo info;
    info.name = properties.name;
    info.multiprocessors = properties.multiProcessorCount;
    info.compute_capability = properties.major * 10 + properties.minor;
    char bus_id[32] = "";
    check(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device), "reading the GPU's PCI bus id");
    info.pci_bus_id = bus_id;
    info.cache_bytes = static_cast<size_t>(properties.l2CacheSize);
    check(cudaMemGetInfo(&info.free_memory, &info.total_memory), "reading the GPU's free memory");
    return info;
}

void* device_malloc(size_t bytes) {
    void* memory = nullptr;
    if (bytes == 0) return memory;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status != cudaSuccess) fail(status, fmt::format("{} bytes of GPU memory were wanted", bytes));
    return memory;
}
void device_free(void* memory) noexcept { cudaFree(memory); }
void* pinned_malloc(size_t bytes) {
    void* memory = nullptr;
    if (bytes > 0) check(cudaMallocHost(&memory, bytes), "allocating pinned memory");
    return memory;
}
void pinned_free(void* memory) noexcept { cudaFreeHost(memory); }

void poison_gap(void*, size_t) {}
void unpoison_gap(void*, size_t) {}

stream_t stream_create() {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    return stream;
}
void stream_destroy(stream_t stream) noexcept { cudaStreamDestroy(stream); }
void stream_synchronize(stream_t stream) { check(cudaStreamSynchronize(stream), "waiting for the stream"); }

event_t event_create() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "creating an event");
    return event;
}
void event_destroy(event_t event) noexcept { cudaEventDestroy(event); }
void event_record(event_t event, stream_t stream) {
    check(cudaEventRecord(event, stream), "recording an event");
}
void event_synchronize(event_t event) { check(cudaEventSynchronize(event), "waiting for an event"); }
float event_elapsed_ms(event_t start, event_t stop) {
    float ms = 0;
    event_synchronize(stop);
    check(cudaEventElapsedTime(&ms, start, stop), "measuring between events");
    return ms;
}

void range_push(const char* name) { nvtxRangePushA(name); }
void range_pop() { nvtxRangePop(); }

void copy_to_device(void* device, const void* host, size_t bytes, stream_t stream) {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream), "copying to the GPU");
}
void copy_to_host(void* host, const void* device, size_t bytes, stream_t stream) {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream), "copying from the GPU");
}
void copy_on_device(void* to, const void* from, size_t bytes, stream_t stream) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying on the GPU");
}
void fill_zero(void* device, size_t bytes, stream_t stream) {
    check(cudaMemsetAsync(device, 0, bytes, stream), "zeroing");
}

graph_t capture(stream_t stream, void (*work)(const void*), const void* closure) {
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t graph = nullptr;
    try {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
              "beginning to capture a graph");
        work(closure);
        check(cudaStreamEndCapture(stream, &recorded), "capturing a graph");
        check(cudaGraphInstantiate(&graph, recorded, 0), "making a graph of what was captured");
    } catch (...) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaStreamIsCapturing(stream, &status);
        if (status != cudaStreamCaptureStatusNone) cudaStreamEndCapture(stream, &recorded);
        if (recorded) cudaGraphDestroy(recorded);
        cudaGetLastError();  // clears the errors of the calls above
        throw;
    }
    cudaGraphDestroy(recorded);
    return graph;
}
void graph_launch(graph_t graph, stream_t stream) {
    check(cudaGraphLaunch(graph, stream), "launching a graph");
}
void graph_destroy(graph_t graph) noexcept { cudaGraphExecDestroy(graph); }

}  // namespace simt
