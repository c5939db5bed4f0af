// target.h: CUDA's words for whichever compiler reads them
//   nvcc has its own; for g++, cpu.h gives them the meaning that docs/simt.md describes.
#pragma once
#include "kernels/simt/host_device.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

namespace simt {
struct Here {  // cpu.h records where barriers stand; the GPU does not need it
    static constexpr __device__ Here now() { return {}; }
};
}  // namespace simt

#define UNROLL _Pragma("unroll")
#define UNROLL_REGISTERS _Pragma("unroll")
#define UNROLL_ONCE _Pragma("unroll 1")
#define INLINE
// An instruction that GPUs have from sm_80 on. Older GPUs trap; programs refuse bf16 on them before such
// a kernel could run.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define FROM_SM80(...) __trap()
#else
#define FROM_SM80(...) __VA_ARGS__
#endif
#else
#include "kernels/simt/cpu.h"
// g++ rejects "#pragma unroll", and unrolls loops of constant length by itself after it has vectorised them.
#define UNROLL
// For loops over an array of Vecs that must live in registers: unrolls them before any other
// optimisation, since g++ would otherwise keep the array in memory.
#define UNROLL_REGISTERS _Pragma("GCC unroll 64")
// For loops whose body fills the registers of a GPU thread: nvcc would unroll them and spill.
#define UNROLL_ONCE
// For a lambda called in a loop: g++ may otherwise call it, and load its constants anew every time. nvcc
// inlines everything.
#define INLINE __attribute__((always_inline))
#endif

namespace simt {

constexpr int warp_size = 32;
constexpr unsigned max_block = 1024;  // threads
// of a block, on sm_90 and sm_100 (163 KiB on sm_80; 99 KiB on sm_86, sm_89 and sm_120)
constexpr size_t max_shared_bytes = 227 * 1024;

// Number of Vecs of 16 floats whose sums the CPU's registers can hold beside the factors.
#ifdef __AVX512F__
constexpr int cpu_register_sums = 16;
#else
constexpr int cpu_register_sums = 4;
#endif

// GPUs before sm_75 have no registers that a warp shares, so a row's number takes those of each thread.
// For device code only.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
constexpr bool uniform_registers = false;
#else
constexpr bool uniform_registers = true;
#endif

// How a kernel is divided on a machine: `threads` threads share a row of the tensor, and each load or
// store moves `bytes` bytes.
//   GPU: a warp or a block for each row; 16 bytes, the widest load of a thread.
//   CPU: one thread for each row; 64 bytes, an AVX-512 register. No thread ever waits for another, so a
//   block is a plain loop.
template <int Threads, int Bytes>
struct Width {
    static constexpr int threads = Threads;
    static constexpr int bytes = Bytes;
};
template <int Threads>
using GpuWidth = Width<Threads, 16>;
using CpuWidth = Width<1, 64>;

// The default width of launchers. Checked builds run the GPU's widths on the CPU, to prove the code that
// a GPU will run.
#if defined(__CUDACC__) || SIMT_CHECKED
template <int GpuThreads>
using NativeWidth = GpuWidth<GpuThreads>;
#else
template <int GpuThreads>
using NativeWidth = CpuWidth;
#endif

// The widths at which a kernel's tests run on this machine, as a list of types:
//   using Widths = simt::TestWidths<testing::Types, 32, 256>;
//   GPU: the widths named. CPU: these too, to prove the code that a GPU will run, and the CPU's own.
#ifdef __CUDACC__
template <template <class...> class List, int... GpuThreads>
using TestWidths = List<GpuWidth<GpuThreads>...>;
#else
template <template <class...> class List, int... GpuThreads>
using TestWidths = List<CpuWidth, GpuWidth<GpuThreads>...>;
#endif

// The block size of a kernel with one row to a block, for __launch_bounds__: without it a large block
// could need more registers than there are.
template <class W>
constexpr int block_of = W::threads < warp_size ? warp_size : W::threads;

// Optimisation barrier: the compiler cannot see through it, so it does not hoist what depends on the
// result out of a loop, which would cost registers there.
__device__ __forceinline__ int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

}  // namespace simt
