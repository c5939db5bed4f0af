// async_copy.cuh: copies from global to shared memory that a thread starts and later waits for
//   cp_async<N>(shared, global, inside)   copies N elements, together 4, 8 or 16 bytes, between addresses
//                                         aligned to as many bytes; if not inside, writes zeros and reads
//                                         nothing
//   cp_async_commit()                     makes one group, which may be empty, of the copies that the
//                                         thread has started since its last commit
//   cp_async_wait<N>()                    waits until at most the N newest groups of the thread are in
//                                         flight
//   Each is an instruction of the GPU (PTX: cp.async).
//   A thread sees its own copy after the wait; other threads see it after a barrier that follows the
//   wait. A thread may start a copy to elements that it has just read itself. On the CPU the elements
//   are NaN from the start of the copy to the wait. GPUs before sm_80 copy at once.
#pragma once
#include "kernels/simt/target.h"
#include "kernels/simt/vec.cuh"

namespace simt {

template <int N, class T>
__device__ __forceinline__ void cp_async(T* shared, const T* global, bool inside) {
    constexpr int bytes = N * sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    using W = typename detail::Word<bytes>::type;
    *reinterpret_cast<W*>(shared) = inside ? *reinterpret_cast<const W*>(global) : W{};
#elif defined(__CUDACC__)
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int from_bytes = inside ? bytes : 0;
    // cg bypasses the first-level cache: these bytes are not read from global memory again soon
    if constexpr (bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(from_bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(bytes),
                     "r"(from_bytes)
                     : "memory");
    }
#else
    detail::check_alignment(shared, bytes);
    if (inside) detail::check_alignment(global, bytes);
    cpu::async_copy(shared, global, bytes, inside);
#endif
}

__device__ __forceinline__ void cp_async_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
    cpu::async_commit();
#endif
}

template <int N>
__device__ __forceinline__ void cp_async_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#elif !defined(__CUDACC__)
    cpu::async_wait(N);
#endif
}

}  // namespace simt
