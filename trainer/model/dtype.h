// dtype.h: in which numbers a model computes, as --dtype names them.
//   fp32; tf32: fp32 whose products round their factors to 10 bits on a GPU's tensor cores; bf16: parameters
//   and activations in bfloat16.
#pragma once
#include <map>
#include <string>

#include "kernels/simt/device.h"

enum class DType { fp32, tf32, bf16 };

inline const std::map<std::string, DType> dtypes = {
    {"fp32", DType::fp32}, {"tf32", DType::tf32}, {"bf16", DType::bf16}};

std::string to_string(DType dtype);

// UsageError on a GPU that cannot compute in this type. CPUs can in all of them.
void check_dtype(DType dtype, const simt::DeviceInfo& device);
