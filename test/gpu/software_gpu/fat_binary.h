// fat_binary.h: finds the PTX that nvcc embeds in an object
//   A fat binary is a header and entries, each machine code or PTX for one architecture. nvcc compresses PTX
//   with zstd (CUDA 13) or LZ4 (CUDA 12). The format is undocumented; fields and flags are those that nvcc 12
//   and 13 write.
#pragma once
#include <string>
#include <vector>

namespace software_gpu {

struct PtxText {
    unsigned architecture;  // 80: sm_80
    std::string text;
};

// wrapper: the argument of __cudaRegisterFatBinary. Throws Fault if it is not a fat binary or cannot be
// unpacked.
std::vector<PtxText> ptx_texts(const void* wrapper);

}  // namespace software_gpu
