// trace.h: the calls that a program makes of the CUDA runtime, cuBLASLt and NCCL, a line each, for the tests
// that judge which calls are made
#pragma once
#include <string>
#include <vector>

namespace software_gpu {

// True once a test has asked for the calls, or if SOFTWARE_GPU_TRACE names a file, to which every line is
// appended. Lines with details are costly, so their writers ask first.
bool traces();
void trace(const std::string& call);  // "": nothing
// The calls since the last query. Work that a capture records begins with "| ".
std::vector<std::string> take_calls();

// The call that fails from now on, such as "cudaGraphInstantiate"; "" for none.
void refuse(const std::string& call);
bool refuses(const std::string& call);

}  // namespace software_gpu
