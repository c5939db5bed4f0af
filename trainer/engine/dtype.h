// dtype.h: the number formats in which a model computes, named as by --dtype.
//   fp32; tf32: fp32 whose matrix products round their factors to 10 mantissa bits on a GPU's tensor
//   cores; bf16: parameters and activations in bfloat16.
#pragma once
#include <map>
#include <string>

#include "kernels/simt/device.h"

enum class DType { fp32, tf32, bf16 };

inline const std::map<std::string, DType> dtypes = {
    {"fp32", DType::fp32}, {"tf32", DType::tf32}, {"bf16", DType::bf16}};

std::string to_string(DType dtype);

// UsageError if the GPU cannot compute in this type. CPUs support all of them.
void check_dtype(DType dtype, const simt::DeviceInfo& device);
