// elementwise.cuh: out[i] = f(inp[i], ...): the frame of kernels whose element i depends only on element
//   i of their inputs
//   Its bits depend neither on n nor on whether it is computed in a whole vector or in the remainder (but
//   for subnormals in bfloat16). Where a sum has two products, simt::fused_multiply_add says which one is
//   fused: g++ chose one for the vectors and the other for the remainder.
#pragma once
#include "kernels/common.cuh"

// Vectors that one thread processes, one after the other. GPU: one, so that neighbouring threads read
// neighbouring memory. CPU: enough that calling the thread costs nothing.
//   On a GPU one vector of each input is enough where there are two inputs or more. A load takes about
//   800 cycles, and an SM's share of the memory bandwidth is 15 bytes a cycle (H100) to 21 (H200), so 12
//   to 17 KB of loads must be in flight per SM. Threads also compute, store and start, so two to three
//   times that should be requested: 1536 threads with two vectors of 16 bytes each request 48 KB.
template <class W>
constexpr int vectors_per_thread = W::threads == 1 ? 32 : 1;

template <int M>
using Length = std::integral_constant<int, M>;

// Calls body(i, Length<M>) for this thread's share of n elements; body computes elements i to i + M - 1.
// M = N, and 1 at the end of the array.
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

// Vectors that one thread of map_vectors processes. On a GPU one vector would be too little with a
// single input, so a thread loads four before it computes.
template <class W>
constexpr int mapped_vectors = W::threads == 1 ? vectors_per_thread<W> : 4;

// out[i] = function(inp[i]). The function changes its vector in place; passed and returned by value, g++
// would keep it in memory.
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
        // Neighbouring threads take neighbouring vectors, and a thread's own vectors are `step` elements
        // apart.
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
            simt::one_at_a_time();
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

// Launches kernel(N) over n elements. N is the length of the widest vector of T that W allows if all
// arrays are aligned to it, else 1.
//   launch_elementwise<W, T>(n, stream, [](auto N) { return gelu_forward_kernel<W, N(), T>; }, out, inp, n);
//   vectors: vectors of one thread; mapped_vectors<W> for a kernel that calls map_vectors.
template <class W, class T, int vectors = vectors_per_thread<W>, class Kernel, class... Arguments>
void launch_elementwise(size_t n, stream_t stream, Kernel kernel, Arguments... arguments) {
    if (n == 0) return;
    // A load or store moves up to 16 bytes at once: on the GPU its address must be a multiple of that,
    // and the CPU is faster if it is.
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

// The T of launch_elementwise where some arrays hold T and others float. GPU: float, so that the lanes
// of a warp touch consecutive bytes of a float array. Eight floats a thread would be two stores with
// gaps of 16 bytes between the lanes, each filling half of every 32-byte sector. That doubles the work
// of the L2 cache, which at the speed of an H200's memory has none to spare. CPU: T, so that its vectors
// fill whole registers.
template <class W, class T>
using BesideFloats = std::conditional_t<W::threads == 1, T, float>;
