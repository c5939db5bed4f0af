// host_allocator.h: host memory for copies to and from a device: ordinary memory, or pinned memory for a
// GPU.
#pragma once
#include <cstddef>
#include <functional>

struct HostAllocator {
    std::function<void*(size_t bytes)> allocate;
    std::function<void(void*)> free;
    static HostAllocator standard();  // ordinary memory, aligned to 64 bytes
};
