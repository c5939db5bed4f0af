// device.h: memory, streams, events and graphs of the machine on which the kernels run
//   device_cuda.cpp implements it for the GPU, device_cpu.cpp for the CPU; the build links one of them.
//   On the CPU "device memory" is ordinary memory on huge pages, and work given to a stream runs at once.
//   Every function throws Error with the library's message if the machine refuses.
#pragma once
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

// The tag types behind cudaStream_t and cudaEvent_t, so that host code needs no CUDA header.
using stream_t = struct CUstream_st*;
using event_t = struct CUevent_st*;
using graph_t = struct CUgraphExec_st*;

namespace simt {

struct DeviceInfo {
    std::string name;         // "NVIDIA H200", "Intel(R) Xeon(R) Processor, 2 cores"
    size_t total_memory = 0;  // bytes
    // bytes that this process may still allocate (CPU: cgroup, RLIMIT_AS and MemAvailable)
    size_t free_memory = 0;
    int multiprocessors = 0;      // SMs; CPU: threads that kernels run on
    int compute_capability = 0;   // 90 on sm_90; 0 on the CPU
    std::string pci_bus_id = {};  // "0000:3B:00.0", the GPU's name in NVML; empty on the CPU
    size_t cache_bytes = 0;       // second-level cache; 0 on the CPU
};

// True in the build whose kernels run on an NVIDIA GPU.
bool is_gpu();
// Selects the GPU (CPU: the cores) of process local_rank of the local_size processes on this machine,
// for the whole process.
void select_device(int local_rank = 0, int local_size = 1);
// select_device pins the calling thread to a core (CPU), and threads that it starts afterwards inherit
// that. A background thread, such as a reader of data, calls this first: it may then run on any core of
// this process, and does not compete for one core with the computation.
void unpin_this_thread();
DeviceInfo device_info();

// Aligned to 256 bytes or more; filled with NaN in checked builds. 0 bytes give nullptr.
void* device_malloc(size_t bytes);
void device_free(void* memory) noexcept;
void* pinned_malloc(size_t bytes);  // host memory for asynchronous copies
void pinned_free(void* memory) noexcept;

// Gaps between arrays in one allocation. In checked builds on the CPU, AddressSanitizer stops a kernel
// that touches a poisoned gap; elsewhere these do nothing. Unpoison a gap before its memory is freed or
// used for something else.
void poison_gap(void* memory, size_t bytes);
void unpoison_gap(void* memory, size_t bytes);

stream_t stream_create();
void stream_destroy(stream_t stream) noexcept;
void stream_synchronize(stream_t stream);

event_t event_create();
void event_destroy(event_t event) noexcept;
void event_record(event_t event, stream_t stream);
void event_synchronize(event_t event);
float event_elapsed_ms(event_t start, event_t stop);  // both recorded; waits for stop

// A named range of this thread's work on a timeline: NVTX, which Nsight Systems shows beside the kernels.
// Ranges nest. They cost a few nanoseconds while no tool is attached; on the CPU they do nothing.
void range_push(const char* name);
void range_pop();

// Asynchronous on the stream. For that, host memory must be pinned, and it must stay alive until the
// copy is done.
void copy_to_device(void* device, const void* host, size_t bytes, stream_t stream);
void copy_to_host(void* host, const void* device, size_t bytes, stream_t stream);
void copy_on_device(void* to, const void* from, size_t bytes, stream_t stream);
void fill_zero(void* device, size_t bytes, stream_t stream);

// A graph is work that was given to a stream once, and is given to it again as a whole: one launch
// instead of hundreds. The CPU has none.
// capture records the work that work() gives to the stream, with the arguments and addresses of this
// moment, and runs none of it. What other threads do meanwhile does not matter. Throws Error, and leaves
// the stream as it was, if work() throws or does what cannot be recorded.
graph_t capture(stream_t stream, void (*work)(const void*), const void* closure);
template <class Work>
graph_t capture(stream_t stream, const Work& work) {
    return capture(
        stream, [](const void* closure) { (*static_cast<const Work*>(closure))(); }, &work);
}
void graph_launch(graph_t graph, stream_t stream);
void graph_destroy(graph_t graph) noexcept;

// Owns count elements of device memory.
template <class T>
class DeviceBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

public:
    DeviceBuffer() = default;
    explicit DeviceBuffer(size_t count)
        : data_(static_cast<T*>(device_malloc(count * sizeof(T)))), count_(count) {}
    DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~DeviceBuffer() { device_free(data_); }
    void swap(DeviceBuffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }
    T* data() const { return data_; }
    size_t size() const { return count_; }
    size_t bytes() const { return count_ * sizeof(T); }

private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace simt
