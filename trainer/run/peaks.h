// peaks.h: the machine's peak rates, with which a step and its operations are compared.
#pragma once
#include <optional>
#include <string>

#include "trainer/engine/dtype.h"

// Bytes read and written per second by a copy of 256 MiB: the faster of plain stores and of stores around
// the caches, which do not read what they replace.
double measure_copy_bandwidth();

// FLOP/s of large matrix products with factors of this type, computed by gemm.h: the best of a few
// products or, if quick, of one.
double measure_matmul_rate(DType dtype, bool quick = false);

// FLOP/s of dense products that accumulate in fp32, as NVIDIA publishes them (nvidia_rates.inc), by CUDA's
// name of the GPU. std::nullopt if the GPU is not in the table, lacks the type, or has no confirmed rate.
std::optional<double> nvidia_matmul_rate(const std::string& device, DType dtype);

// The rate of which the model FLOPs utilization (MFU) is a fraction.
struct MatmulPeak {
    double flops_per_second = 0;
    bool measured = true;  // false: NVIDIA's figure for this GPU
};
// NVIDIA's figure for the device. If the table has none: `measured`, in FLOP/s, or a quick measurement if
// that is 0.
MatmulPeak matmul_peak(const std::string& device, DType dtype, double measured);
std::string rate_text(double flops_per_second,
                      int processes);                          // "8 x 989.4 TFLOP/s"; of one, "989.4 TFLOP/s"
std::string to_string(const MatmulPeak& peak, int processes);  // with ", NVIDIA's figure for this GPU"
