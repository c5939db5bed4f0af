// async_copy.cuh: copies from global to shared memory that a thread begins and later waits for; an
// instruction a function (PTX: cp.async).
//   cp_async<N>(shared, global, inside)   N elements of 4, 8 or 16 bytes together, at such an address; zeros,
//                                         and no access, unless inside
//   cp_async_commit()                     what the thread has begun since the last commit is a group (it may
//                                         be empty)
//   cp_async_wait<N>()                    waits until at most the N newest of the thread's groups are still
//                                         under way
//   A thread sees its own copy after the wait, other threads after a barrier that follows it. A thread may
//   begin a copy to elements that it has just read itself. On the CPU the elements are NaN from the beginning
//   of the copy to the wait. GPUs before sm_80 copy at once.
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
    // past the first-level cache: nobody reads these bytes from global memory again soon
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
