#include "system/host_allocator.h"

#include <new>

HostAllocator HostAllocator::standard() {
    static constexpr std::align_val_t cache_line{64};
    return {[](size_t bytes) { return ::operator new(bytes, cache_line); },
            [](void* memory) { ::operator delete(memory, cache_line); }};
}
