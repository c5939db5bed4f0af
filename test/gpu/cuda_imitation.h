// cuda_imitation.h: the CUDA runtime and cuBLASLt as far as our programs call them, for a machine without a
//   GPU: a program linked with it makes the calls that it would make on one, and they are written down.
//   Device memory is the host's and begins as zeros, copies are made at once, kernels and products compute
//   nothing.
#pragma once
#include <string>
#include <vector>

namespace cuda_imitation {

// The calls since the last time, a line each. Those that a capture records begin with "| ". Also appended to
// the file $CUDA_TRACE.
std::vector<std::string> take_calls();

// The call that fails from now on, such as "cudaGraphInstantiate", or "captured launch"; at first
// $CUDA_REFUSES.
void refuse(const std::string& call);

}  // namespace cuda_imitation
