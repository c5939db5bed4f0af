// checksum.cuh: a number that depends on every bit of an array and on its position
//   checksum = sum over i of mix(bits of x[i] + (i + 1) * golden), mod 2^64
//   golden = 2^64 / phi, mix = SplitMix64's finaliser (Steele, Lea, Flood 2014,
//   doi:10.1145/2660193.2660195)
//   The order of the additions does not matter, so the result is the same on every machine.
#pragma once
#include "kernels/common.cuh"

__device__ inline uint64_t checksum_term(uint64_t bits, size_t i) {
    uint64_t z = bits + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// sum += the checksum. A thread takes every stride-th element.
template <class T>
__global__ void checksum_kernel(unsigned long long* sum, const T* values, size_t n) {
    const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    unsigned long long own = 0;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint32_t bits = 0;
        memcpy(&bits, values + i, sizeof(T));
        own += checksum_term(bits, i);
    }
    atomicAdd(sum, own);
}

// sum (1) += the checksum of values (n). Reads n values; bound by memory bandwidth.
template <class T>
void add_checksum(unsigned long long* sum, const T* values, size_t n, stream_t stream) {
    constexpr size_t block = 256, most_blocks = 1024;
    if (n > 0)
        launch(checksum_kernel<T>, static_cast<unsigned>(std::min(most_blocks, ceil_div(n, block))), block, 0,
               stream, sum, values, n);
}
