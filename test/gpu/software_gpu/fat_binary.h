// fat_binary.h: the PTX in what nvcc embeds in an object.
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

// wrapper: what __cudaRegisterFatBinary is given. Fault for what is no fat binary, and for one that cannot be
// unpacked.
std::vector<PtxText> ptx_texts(const void* wrapper);

}  // namespace software_gpu
