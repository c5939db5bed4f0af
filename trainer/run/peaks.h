// peaks.h: what this machine can do: what a step's operations, and the step as a whole, are compared with.
#pragma once
#include <string>

#include "trainer/model/dtype.h"

// Bytes read and written in a second by a plain copy of 256 MiB.
double measure_copy_bandwidth();

// Operations a second of large matrix products through gemm.h, whose factors are of this type: the best of a
// few; or, quick, of one that takes a CPU a few milliseconds.
double measure_matmul_rate(DType dtype, bool quick = false);

// The rate that model FLOPs utilization (MFU) is a share of.
struct MatmulPeak {
    double flops_per_second = 0;
    bool measured = true;  // false: NVIDIA's figure for this GPU
};
// measured: what to take, in operations a second, for a device that is not in NVIDIA's table; 0: measures it,
// quickly.
MatmulPeak matmul_peak(const std::string& device, DType dtype, double measured = 0);
std::string to_string(const MatmulPeak& peak);  // "989.4 TFLOP/s, NVIDIA's figure for this GPU"
