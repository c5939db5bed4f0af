// host_device.h: what both kernels and host code use
#pragma once

// marks a function that both call
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

#ifndef SIMT_CHECKED
#define SIMT_CHECKED 0
#endif

namespace simt {

// True in builds with the checks of docs/simt.md: poisoned memory, gaps between arrays.
constexpr bool checked = SIMT_CHECKED;

template <class T>
constexpr HOST_DEVICE T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}

}  // namespace simt
