// elementwise.cuh: the frame of kernels whose element i depends on element i of their inputs alone.
#pragma once
#include <algorithm>

#include "common.cuh"

// Vectors of one thread. GPU: one, so that neighbouring threads read neighbouring memory. CPU: enough that calling the thread costs nothing.
template <class W>
constexpr int vectors_per_thread = W::threads == 1 ? 32 : 1;

template <int M>
using Length = std::integral_constant<int, M>;

// Calls body(i, Length<M>) for this thread's share of n elements: i to i + M - 1 are its to compute. M = N, and 1 at the end of the array.
//   for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE { ... load<M>(inp + i) ... });
template <class W, int N, class Body>
__device__ __forceinline__ void for_each_vector(size_t n, Body body) {
    constexpr size_t share = static_cast<size_t>(N) * vectors_per_thread<W>;
    const size_t begin = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * share;
    if (begin + share <= n) {
        for (int v = 0; v < vectors_per_thread<W>; v++) body(begin + v * N, Length<N>{});
    } else {
        for (size_t i = begin; i < n; i++) body(i, Length<1>{});
    }
}

// Launches kernel<N> over n elements, where N = the widest vector of T that W allows if all the arrays are aligned to it, else 1.
//   launch_elementwise<W, T>(n, stream, [](auto N) { return gelu_forward_kernel<W, N(), T>; }, out, inp, n);
template <class W, class T, class Kernel, class... Arguments>
void launch_elementwise(size_t n, stream_t stream, Kernel kernel, Arguments... arguments) {
    if (n == 0) return;
    // The bytes that a load or store moves at once: an address must be a multiple of them on the GPU, and the CPU is faster if it is.
    const auto misalignment = [](auto argument) -> size_t {
        if constexpr (std::is_pointer_v<decltype(argument)>) return reinterpret_cast<uintptr_t>(argument) % 16;
        else return 0;
    };
    const bool aligned = ((misalignment(arguments) == 0) && ...);
    const auto start = [&](auto N) {
        constexpr unsigned block = W::threads == 1 ? simt::warp_size : 256;
        const size_t threads = ceil_div<size_t>(n, static_cast<size_t>(N()) * vectors_per_thread<W>);
        launch(kernel(N), static_cast<unsigned>(ceil_div<size_t>(threads, block)), block, 0, stream, arguments...);
    };
    if (aligned) start(Length<W::bytes / sizeof(T)>{});
    else start(Length<1>{});
}
