// host_device.h: HOST_DEVICE marks a function that both kernels and host code call
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif
