// cuda_imitation.h: the part of the CUDA runtime and cuBLASLt that our programs call, for a machine
// without a GPU. A program linked with it makes the same calls as on a GPU, and they are recorded. Device
// memory is the host's and starts as zeros, copies are made at once, kernels and products compute nothing.
#pragma once
#include <string>
#include <vector>

namespace cuda_imitation {

// The calls since the last query, one per line. Calls recorded by a capture begin with "| ". They are also
// appended to the file $CUDA_TRACE.
std::vector<std::string> take_calls();

// The call that fails from now on, such as "cudaGraphInstantiate", or "captured launch"; initially
// $CUDA_REFUSES.
void refuse(const std::string& call);

}  // namespace cuda_imitation
