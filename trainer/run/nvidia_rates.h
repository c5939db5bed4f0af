// nvidia_rates.h: peak rates of matrix products that NVIDIA publishes, by CUDA's name of the GPU
#pragma once
#include <optional>
#include <string>

#include "trainer/model/dtype.h"

// Operations per second of dense products that accumulate in fp32. std::nullopt if the GPU is not in the
// table, lacks the type, or has no confirmed rate for it.
std::optional<double> nvidia_matmul_rate(const std::string& device, DType dtype);
