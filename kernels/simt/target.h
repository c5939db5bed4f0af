// target.h: CUDA's words, whichever compiler reads them.
//   nvcc brings its own; for g++ cpu.h gives them the meaning docs/simt.md describes.
#pragma once
#include "kernels/simt/host_device.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

namespace simt {
struct Here {  // cpu.h needs to know where barriers stand; the GPU does not
    static constexpr __device__ Here now() { return {}; }
};
}  // namespace simt

#define UNROLL _Pragma("unroll")
#define UNROLL_REGISTERS _Pragma("unroll")
#define UNROLL_ONCE _Pragma("unroll 1")
#define INLINE
// An instruction that GPUs have from sm_80 on. Older ones trap: their programs refuse bf16 before a kernel
// could come here.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define FROM_SM80(...) __trap()
#else
#define FROM_SM80(...) __VA_ARGS__
#endif
#else
#include "kernels/simt/cpu.h"
// g++ rejects "#pragma unroll", and unrolls loops of constant length by itself after it has vectorised them.
#define UNROLL
// For loops over an array of Vecs that must live in registers: unrolled before anything else, or g++ keeps
// the array in memory.
#define UNROLL_REGISTERS _Pragma("GCC unroll 64")
// For loops whose body fills a GPU thread's registers: nvcc would unroll them and spill.
#define UNROLL_ONCE
// For a lambda called in a loop: left to itself g++ may call it, and load its constants anew every time. nvcc
// inlines everything.
#define INLINE __attribute__((always_inline))
#endif

#ifndef SIMT_CHECKED
#define SIMT_CHECKED 0
#endif

namespace simt {

constexpr int warp_size = 32;
constexpr unsigned max_block = 1024;  // threads
// of a block, on sm_90 and sm_100 (163 KiB on sm_80, 99 KiB on sm_86 and sm_89)
constexpr size_t max_shared_bytes = 227 * 1024;

// How many Vecs of 16 floats the CPU's registers can sum at once, beside their factors.
#ifdef __AVX512F__
constexpr int cpu_register_sums = 16;
#else
constexpr int cpu_register_sums = 4;
#endif

// True where the checks of docs/simt.md are compiled in: poisoned memory, gaps between arrays.
constexpr bool checked = SIMT_CHECKED;

// How a kernel is cut for a machine: `threads` share a row of the tensor, and each load or store moves
// `bytes`.
//   GPU: a warp or a block a row, 16 bytes (the widest load of one thread).
//   CPU: one thread a row, 64 bytes (an AVX-512 register): no thread ever waits for another, so a block is a
//   plain loop.
template <int Threads, int Bytes>
struct Width {
    static constexpr int threads = Threads;
    static constexpr int bytes = Bytes;
};
template <int Threads>
using GpuWidth = Width<Threads, 16>;
using CpuWidth = Width<1, 64>;

// The width that launchers use unless told otherwise. Checked builds run the GPU's widths on the CPU, to
// prove the code that a GPU will run.
#if defined(__CUDACC__) || SIMT_CHECKED
template <int GpuThreads>
using NativeWidth = GpuWidth<GpuThreads>;
#else
template <int GpuThreads>
using NativeWidth = CpuWidth;
#endif

// The widths at which a kernel's tests run on this machine, as a list of types: using Widths =
// simt::TestWidths<testing::Types, 32, 256>;
//   GPU: the widths named. CPU: those too, to prove the code a GPU will run, and the CPU's own.
#ifdef __CUDACC__
template <template <class...> class List, int... GpuThreads>
using TestWidths = List<GpuWidth<GpuThreads>...>;
#else
template <template <class...> class List, int... GpuThreads>
using TestWidths = List<CpuWidth, GpuWidth<GpuThreads>...>;
#endif

// The threads of a block that is one row, for __launch_bounds__: without it a large block could want more
// registers than there are.
template <class W>
constexpr int block_of = W::threads < warp_size ? warp_size : W::threads;

// Optimisation barrier: the compiler knows nothing about the result, so it cannot hoist what depends on it
// out of a loop, which would cost registers there.
__device__ __forceinline__ int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

template <class T>
constexpr HOST_DEVICE T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}

}  // namespace simt
