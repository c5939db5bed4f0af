// random.cuh: fills tensors with normal random numbers or a constant, and converts between types
#pragma once
#include "kernels/elementwise.cuh"
#include "kernels/simt/philox.h"

// Four independent standard normal numbers from one counter of Philox (simt/philox.h). Box and Muller
// 1958: sqrt(-2 ln u) times the cosine and the sine of 2 pi w, with u in (0, 1] and w in [0, 1).
__device__ inline Vec<float, 4> philox_normal(uint64_t counter, uint32_t purpose, uint64_t seed) {
    const Philox4 bits =
        philox4x32_10({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), purpose, 0}},
                      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    Vec<float, 4> normal;
    UNROLL
    for (int pair = 0; pair < 4; pair += 2) {
        const float u = (static_cast<float>(bits.x[pair]) + 0.5f) * 0x1p-32f;
        const float angle = static_cast<float>(bits.x[pair + 1] >> 8) * (6.283185307179586f * 0x1p-24f);
        const float radius = simt::sqrt(-2.0f * simt::log(u));
        normal[pair] = radius * cosf(angle);
        normal[pair + 1] = radius * sinf(angle);
    }
    return normal;
}

// A thread generates the numbers of `quads` counters, four each.
template <int quads>
__global__ void normal_init_kernel(float* out, size_t n, float mean, float std, uint64_t seed,
                                   uint32_t purpose) {
    const size_t begin = (static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * quads;
    for (size_t counter = begin; counter < begin + quads && counter * 4 < n; counter++) {
        const Vec<float, 4> normal = philox_normal(counter, purpose, seed);
        for (size_t k = 0; k < 4 && counter * 4 + k < n; k++)
            out[counter * 4 + k] = mean + std * normal[static_cast<int>(k)];
    }
}

// out (n) = mean + std * standard normal numbers. Element i depends on (seed, purpose, i) alone, so
// every tensor needs a purpose of its own.
template <class W = simt::NativeWidth<32>>
void normal_init(float* out, size_t n, float mean, float std, uint64_t seed, uint32_t purpose,
                 stream_t stream) {
    if (n == 0) return;
    constexpr unsigned quads = W::threads == 1 ? 64 : 1, block = W::threads == 1 ? simt::warp_size : 256;
    launch(normal_init_kernel<quads>, static_cast<unsigned>(ceil_div<size_t>(n, 4 * quads * block)), block, 0,
           stream, out, n, mean, std, seed, purpose);
}

template <class W, int N, class T>
__global__ void fill_kernel(T* out, float value, size_t n) {
    for_each_vector<W, N>(
        n, [&]<int M>(size_t i, Length<M>) INLINE { store(out + i, simt::broadcast<M>(value)); });
}

// out (n) = value
template <class W = simt::NativeWidth<32>, class T>
void fill(T* out, float value, size_t n, stream_t stream) {
    launch_elementwise<W, T>(
        n, stream, [](auto N) { return fill_kernel<W, N(), T>; }, out, value, n);
}

template <class W, int N, class To, class From>
__global__ void convert_kernel(To* out, const From* inp, size_t n) {
    map_vectors<W, N>(out, inp, n, []<int M>(Vec<float, M>&) INLINE {});
}

// out (n) = inp, rounded to the type of out
template <class W = simt::NativeWidth<32>, class To, class From>
void convert(To* out, const From* inp, size_t n, stream_t stream) {
    launch_elementwise<W, BesideFloats<W, To>, mapped_vectors<W>>(
        n, stream, [](auto N) { return convert_kernel<W, N(), To, From>; }, out, inp, n);
}
