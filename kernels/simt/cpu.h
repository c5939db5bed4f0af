// cpu.h: the meaning of CUDA's words for g++. Only target.h includes it.
//   The threads of a block are fibers of one OS thread, unless there is only one (cpu.cpp). Every barrier and
//   collective has default arguments that hold the place of its call, so that a divergence is reported with
//   file and line.
#pragma once
#ifdef SIMT_GPU
#error "In the GPU build, nvcc compiles the files that include kernels/*.cuh; run scripts/configure.sh cuda"
#endif
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Set by the executor before a thread starts or resumes. They are initialised statically, so that
// reading one is a single load.
inline constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

namespace simt {
// Bytes of the machine's vector register.
#ifdef __AVX512F__
constexpr int cpu_vector_bytes = 64;
#else
constexpr int cpu_vector_bytes = 32;
#endif
// True if these programs were compiled with its instructions that multiply and add at once.
#ifdef __FMA__
constexpr bool cpu_multiply_adds = true;
#else
constexpr bool cpu_multiply_adds = false;
#endif

// A place in the source. As a default argument, Here::now() is where the function is called.
struct Here {
    const char* file;
    int line;
    static constexpr Here now(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

}  // namespace simt

namespace simt::cpu {

struct Site {  // what a thread waits for, and where
    const char* what;
    Here here;
};

void warp_barrier(Site site);
void block_barrier(Site site);

// Returns the value that lane `source` of the warp passes. All lanes meet here.
uint64_t warp_shuffle(uint64_t value, unsigned source, Site site);

// All threads of the warp (block) meet here. The last to arrive calls combine(values, threads), which
// replaces each thread's value by that thread's result.
using Combine = void (*)(float* values, unsigned threads);
float warp_combine(float value, Combine combine, Site site);
float block_combine(float value, Combine combine, Site site);

// All lanes of the warp meet here. The last to arrive calls together(operands), where operands[i] is
// what lane i passed.
using Together = void (*)(void* const* operands);
void warp_together(void* operands, Together together, Site site);

// Operands of a lane for the instructions of mma.cuh, and these instructions for all lanes (mma_cpu.cpp).
struct MmaOperands {
    float* sums;
    const uint32_t* a;
    uint32_t b0, b1;
};
struct LdmatrixOperands {
    uint32_t* result;
    const void* row;
};
void mma_together(void* const* operands);
void ldmatrix_together(void* const* operands);
void ldmatrix_trans_together(void* const* operands);

// The running thread's copies to shared memory (async_copy.cuh).
void async_copy(void* shared, const void* global, size_t bytes, bool inside);
void async_commit();
void async_wait(unsigned groups_left);

[[noreturn]] void refuse_partial_mask(unsigned mask, Site site);
[[noreturn]] void refuse_block(unsigned expected_threads, Site site);

template <class T>
T shuffle(unsigned mask, T value, unsigned source, Site site) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
    if (mask != 0xffffffffu) refuse_partial_mask(mask, site);
    uint64_t given = 0;
    std::memcpy(&given, &value, sizeof(T));
    const uint64_t taken = warp_shuffle(given, source, site);
    std::memcpy(&value, &taken, sizeof(T));
    return value;
}

// The order in which threads and blocks run; a kernel's results must not depend on it. It applies to all
// later launches of every host thread.
enum class Order { ascending, descending, shuffled };
void set_order(Order order, uint64_t seed = 0);

// Shared memory of the running block (shared.cuh).
void* shared_take(size_t& offset, size_t& taken, size_t padded_bytes, size_t bytes);

// On a GPU a store to global memory cannot write shared memory, nor a store to shared memory global
// memory. Checked builds refuse both.
void check_store(const void* address, bool to_shared);

// A GPU refuses a load of up to 16 bytes from an address that is not a multiple of its length. Checked
// builds refuse it too.
[[noreturn]] void refuse_misaligned(const void* address, size_t alignment);

using ThreadFunction = void (*)(const void* closure);
void run_grid(dim3 grid, unsigned block, size_t shared_bytes, ThreadFunction thread, const void* closure);

}  // namespace simt::cpu

inline void __syncthreads(simt::Here here = simt::Here::now()) {
    simt::cpu::block_barrier({"__syncthreads", here});
}
// Full warps only, because the use of a partial mask cannot be proved here.
inline void __syncwarp(simt::Here here = simt::Here::now()) { simt::cpu::warp_barrier({"__syncwarp", here}); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, simt::Here here = simt::Here::now()) {
    return simt::cpu::shuffle(mask, value, source & 31, {"__shfl_sync", here});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, simt::Here here = simt::Here::now()) {
    return simt::cpu::shuffle(mask, value, (threadIdx.x ^ lane_mask) & 31, {"__shfl_xor_sync", here});
}
// Lanes without a source keep their own value.
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, simt::Here here = simt::Here::now()) {
    const unsigned lane = threadIdx.x % 32;
    return simt::cpu::shuffle(mask, value, delta <= lane ? lane - delta : lane, {"__shfl_up_sync", here});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, simt::Here here = simt::Here::now()) {
    const unsigned lane = threadIdx.x % 32;
    return simt::cpu::shuffle(mask, value, delta < 32 - lane ? lane + delta : lane,
                              {"__shfl_down_sync", here});
}

// For integers only: a sum of floats in the order of arrival would differ from run to run.
inline unsigned atomicAdd(unsigned* address, unsigned value) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
inline int atomicAdd(int* address, int value) { return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST); }
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
// Counts up to `last` and then starts again at 0; returns the previous count.
inline unsigned atomicInc(unsigned* address, unsigned last) {
    unsigned old = __atomic_load_n(address, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(address, &old, old >= last ? 0 : old + 1, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {}
    return old;
}

// Hints to a GPU's caches; on the CPU they are plain loads and stores.
template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}
template <class T>
T __ldcg(const T* address) {
    return *address;
}
template <class T>
void __stcs(T* address, T value) {
    *address = value;
}
