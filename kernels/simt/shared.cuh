// shared.cuh: arrays in a block's dynamic shared memory, one after the other
//   SharedMemory shared;
//   float* tile = shared.take<float>(64 * 64);
//   Every thread of the block takes the same arrays in the same order. The launch's shared_bytes is the
//   sum of shared_size<T>(count) over these arrays.
//   On the CPU it is an error to take more than that. Checked builds also fill fresh memory with NaN,
//   and leave a gap behind every array, which AddressSanitizer guards. On the GPU this costs nothing.
#pragma once
#include "kernels/simt/target.h"

namespace simt {

constexpr size_t shared_alignment = 16;

// Bytes of the launch's shared memory that take<T>(count) uses.
template <class T>
constexpr HOST_DEVICE size_t shared_size(size_t count) {
    return ceil_div(count * sizeof(T), shared_alignment) * shared_alignment;
}

class SharedMemory {
public:
    template <class T>
    __device__ T* take(size_t count) {
        static_assert(alignof(T) <= shared_alignment);
#ifdef __CUDACC__
        extern __shared__ int4 dynamic_shared_memory[];
        T* array = reinterpret_cast<T*>(reinterpret_cast<char*>(dynamic_shared_memory) + offset_);
        offset_ += shared_size<T>(count);
        return array;
#else
        return static_cast<T*>(cpu::shared_take(offset_, taken_, shared_size<T>(count), count * sizeof(T)));
#endif
    }

private:
    size_t offset_ = 0;
#ifndef __CUDACC__
    size_t taken_ = 0;
#endif
};

}  // namespace simt
