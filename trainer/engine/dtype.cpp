#include "trainer/engine/dtype.h"

#include <algorithm>

#include "system/error.h"

std::string to_string(DType dtype) {
    return std::ranges::find(dtypes, dtype, [](const auto& named) { return named.second; })->first;
}

void check_dtype(DType dtype, const simt::DeviceInfo& device) {
    const int capability = device.compute_capability;
    CHECK(
        dtype == DType::fp32 || capability == 0 || capability >= 80,
        "--dtype {} needs a GPU of compute capability 8.0 or newer, and {} has {}.{}; expected --dtype fp32",
        to_string(dtype), device.name, capability / 10, capability % 10);
}
