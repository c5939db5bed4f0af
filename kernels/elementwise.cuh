// elementwise.cuh: the frame of kernels whose element i depends on element i of their inputs alone.
#pragma once
#include <algorithm>

#include "kernels/common.cuh"

// Vectors of one thread, one after the other. GPU: one, so that neighbouring threads read neighbouring
// memory. CPU: enough that calling the thread costs nothing.
//   One vector of each input is enough for a GPU where there are two inputs or more. A byte takes about 800
//   cycles from memory to an SM that asks for its share of the bandwidth, 15 bytes a cycle (H100) to 21
//   (H200), so 12 to 17 KB must be on their way at any time; threads also compute, write and start, so twice
//   to three times that should be asked for. 1536 threads, two vectors of 16 bytes each: 48 KB.
template <class W>
constexpr int vectors_per_thread = W::threads == 1 ? 32 : 1;

template <int M>
using Length = std::integral_constant<int, M>;

// Calls body(i, Length<M>) for this thread's share of n elements: i to i + M - 1 are its to compute. M = N,
// and 1 at the end of the array.
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

// With one input one vector a thread would be too little: out[i] = function(inp[i]) by threads that ask for
// four before they compute. function
// changes its vector in place: given and returned by value, g++ keeps it in memory.
template <class W>
constexpr int mapped_vectors = W::threads == 1 ? vectors_per_thread<W> : 4;

//   map_vectors<W, N>(out, inp, n, []<int M>(Vec<float, M>& x) INLINE { ... });
template <class W, int N, class To, class From, class Function>
__device__ __forceinline__ void map_vectors(To* out, const From* inp, size_t n, Function function) {
    if constexpr (W::threads == 1) {
        for_each_vector<W, N>(n, [&]<int M>(size_t i, Length<M>) INLINE {
            Vec<float, M> x = load<M>(inp + i);
            function(x);
            store(out + i, x);
        });
    } else {
        // Neighbouring threads take neighbouring vectors, `step` elements further on each time.
        const size_t step = static_cast<size_t>(blockDim.x) * N,
                     begin = blockIdx.x * step * mapped_vectors<W> + threadIdx.x * N;
        Vec<From, N> raw[mapped_vectors<W>];
        UNROLL
        for (int v = 0; v < mapped_vectors<W>; v++) {
            simt::one_at_a_time();
            if (begin + v * step + N <= n) raw[v] = load_raw<N>(inp + begin + v * step);
        }
        UNROLL
        for (int v = 0; v < mapped_vectors<W>; v++) {
            const size_t at = begin + v * step;
            if (at + N <= n) {
                Vec<float, N> x = widen(raw[v]);
                function(x);
                store(out + at, x);
            } else {
                for (size_t i = at; i < n; i++) {
                    Vec<float, 1> x = load<1>(inp + i);
                    function(x);
                    store(out + i, x);
                }
            }
        }
    }
}

// Launches kernel<N> over n elements, where N = the widest vector of T that W allows if all the arrays are
// aligned to it, else 1.
//   launch_elementwise<W, T>(n, stream, [](auto N) { return gelu_forward_kernel<W, N(), T>; }, out, inp, n);
//   vectors: mapped_vectors<W> for a kernel that is a map_vectors.
template <class W, class T, int vectors = vectors_per_thread<W>, class Kernel, class... Arguments>
void launch_elementwise(size_t n, stream_t stream, Kernel kernel, Arguments... arguments) {
    if (n == 0) return;
    // The bytes that a load or store moves at once: an address must be a multiple of them on the GPU, and the
    // CPU is faster if it is.
    const auto misalignment = [](auto argument) -> size_t {
        if constexpr (std::is_pointer_v<decltype(argument)>)
            return reinterpret_cast<uintptr_t>(argument) % 16;
        else return 0;
    };
    const bool aligned = ((misalignment(arguments) == 0) && ...);
    const auto start = [&](auto N) {
        constexpr unsigned block = W::threads == 1 ? simt::warp_size : 256;
        const size_t threads = ceil_div<size_t>(n, static_cast<size_t>(N()) * vectors);
        launch(kernel(N), static_cast<unsigned>(ceil_div<size_t>(threads, block)), block, 0, stream,
               arguments...);
    };
    if (aligned) start(Length<W::bytes / sizeof(T)>{});
    else start(Length<1>{});
}

// The T of launch_elementwise where some arrays are of T and others of float. GPU: float, so that the lanes
// of a warp touch the bytes of a float array one after the other. Eight floats a thread would be two stores
// with gaps of 16 bytes between the lanes, each for half of every 32-byte
// sector: twice the work for L2, which at the speed of an H200's memory has none to spare. CPU: T, whole
// registers of it.
template <class W, class T>
using BesideFloats = std::conditional_t<W::threads == 1, T, float>;
