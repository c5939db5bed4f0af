// copy.cuh: to (count) = from (count), the fastest that memory allows; kernels that are bound by memory
//   bandwidth are compared with it
#pragma once
#include "kernels/common.cuh"

enum class CopyStores { plain, around_caches };

// A thread copies `vectors` vectors. On the GPU neighbouring threads take neighbouring vectors; on the
// CPU a thread takes a contiguous range.
template <class W, CopyStores stores>
__global__ void copy_kernel(float* to, const float* from, size_t count) {
    constexpr int N = W::bytes / sizeof(float), vectors = W::threads == 1 ? 64 : 1;
    const size_t thread = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (int v = 0; v < vectors; v++) {
        const size_t i = (thread * vectors + v) * N;
        if (i >= count) continue;
        if constexpr (stores == CopyStores::plain) store<N>(to + i, load<N>(from + i));
        else store_around_caches<N>(to + i, load_streaming<N>(from + i));
    }
}

// Reads and writes count elements; count must be a multiple of a vector's length.
template <CopyStores stores>
void copy(float* to, const float* from, size_t count, stream_t stream) {
    using W = simt::NativeWidth<32>;
    constexpr size_t block = 256, per_thread = W::bytes / sizeof(float) * (W::threads == 1 ? 64 : 1);
    launch(copy_kernel<W, stores>, static_cast<unsigned>(ceil_div(count, per_thread * block)), block, 0,
           stream, to, from, count);
}
