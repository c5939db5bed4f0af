// vec.cuh: N neighbouring elements, loaded or stored at once and computed on as floats
//   Memory holds T (float or bfloat16), registers hold Vec<float, N>. Addresses are aligned to N
//   elements (on a GPU to at most 16 bytes).
//   Loads read global or shared memory. store writes global memory, store_shared writes shared memory.
//   The streaming forms are a hint to the GPU's caches that these bytes will not be read again soon.
#pragma once
#include <type_traits>

#include "kernels/simt/math.cuh"
#include "kernels/simt/vec_memory.cuh"

namespace simt {

template <class T, int N>
__device__ Vec<float, N> widen(const Vec<T, N>& v) {
    if constexpr (std::is_same_v<T, float>) {
        return v;
    } else {
        Vec<float, N> wide;
        UNROLL
        for (int i = 0; i < N; i++) wide[i] = detail::widened(v, i);
        return wide;
    }
}
template <class T, int N>
__device__ Vec<T, N> narrow(const Vec<float, N>& v) {
    if constexpr (std::is_same_v<T, float>) return v;
    else return detail::round(v);
}

template <int N, class T>
__device__ Vec<float, N> load(const T* address) {
    return widen(detail::load_raw<false, T, N>(address));
}
template <int N, class T>
__device__ Vec<float, N> load_streaming(const T* address) {
    return widen(detail::load_raw<true, T, N>(address));
}
template <int N, class T>
__device__ void store(T* address, const Vec<float, N>& v) {
    detail::store_raw<false, T, N>(address, narrow<T>(v));
}
template <int N, class T>
__device__ void store_shared(T* address, const Vec<float, N>& v) {
    detail::store_shared_raw(address, narrow<T>(v));
}
template <int N, class T>
__device__ void store_streaming(T* address, const Vec<float, N>& v) {
    detail::store_raw<true, T, N>(address, narrow<T>(v));
}
// Stores without first reading the line that is replaced, as a CPU otherwise does. The address must be a
// multiple of 16 bytes. It is faster only if the array is much larger than the caches.
template <int N>
__device__ void store_around_caches(float* address, const Vec<float, N>& v) {
    detail::store_around_caches(address, v);
}
// Loads and stores without the conversion, for kernels that load many vectors before they compute with
// the first: elements that wait in registers are then as short as in memory.
template <int N, class T>
__device__ Vec<T, N> load_raw(const T* address) {
    return detail::load_raw<false, T, N>(address);
}
template <int N, class T>
__device__ void store_raw(T* address, const Vec<T, N>& v) {
    detail::store_raw<false, T, N>(address, v);
}

template <int N>
__device__ __forceinline__ void add(Vec<float, N>& sum, const Vec<float, N>& v) {
    UNROLL
    for (int i = 0; i < N; i++) sum[i] += v[i];
}

// Calls body(std::integral_constant<int, N>) with the longest vector of T that W allows, or half of it if
// that is still 16 bytes or more, if rows of C elements keep its alignment, else with N = 1.
template <class W, class T, class Body>
void for_vector_length(size_t C, Body body) {
    constexpr int N = W::bytes / sizeof(T);
    if (C % N == 0) return body(std::integral_constant<int, N>{});
    if constexpr (W::bytes >= 32) {
        if (C % (N / 2) == 0) return body(std::integral_constant<int, N / 2>{});
    }
    body(std::integral_constant<int, 1>{});
}

}  // namespace simt
