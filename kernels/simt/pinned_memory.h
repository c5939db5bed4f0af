// pinned_memory.h: host memory that a GPU copies from and to without the host's help
#pragma once
#include "kernels/simt/device.h"
#include "system/host_allocator.h"

namespace simt {

inline HostAllocator pinned_memory() { return {pinned_malloc, pinned_free}; }

}  // namespace simt
