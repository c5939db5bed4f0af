// nvidia_rates.h: what NVIDIA's data sheets promise a matrix product, by the name that CUDA gives a GPU.
#pragma once
#include <optional>
#include <string>

#include "trainer/model/dtype.h"

// Operations a second of dense products that accumulate in fp32. std::nullopt: a GPU that is not in the
// table, or a type that it does not have.
std::optional<double> nvidia_matmul_rate(const std::string& device, DType dtype);
