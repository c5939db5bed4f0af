// mma_cpu.cpp: the instructions of mma.cuh, applied to the operands of all lanes of a warp
#include <bit>
#include <cstring>

#include "kernels/simt/target.h"

namespace simt::cpu {
namespace {

float half(uint32_t pair, int i) { return std::bit_cast<float>((i == 0 ? pair << 16 : pair) & 0xffff0000u); }

template <bool Trans>
void load_matrices(void* const* operands) {
    uint16_t matrices[4][8][8];
    for (int lane = 0; lane < warp_size; lane++) {
        std::memcpy(matrices[lane / 8][lane % 8], static_cast<const LdmatrixOperands*>(operands[lane])->row,
                    16);
    }
    for (int lane = 0; lane < warp_size; lane++) {
        const int major = lane / 4, minor = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            const uint32_t first = Trans ? matrices[i][minor][major] : matrices[i][major][minor];
            const uint32_t second = Trans ? matrices[i][minor + 1][major] : matrices[i][major][minor + 1];
            static_cast<LdmatrixOperands*>(operands[lane])->result[i] = second << 16 | first;
        }
    }
}

}  // namespace

void ldmatrix_together(void* const* operands) { load_matrices<false>(operands); }
void ldmatrix_trans_together(void* const* operands) { load_matrices<true>(operands); }

void mma_together(void* const* operands) {
    float left[16][16], right[16][8], sums[16][8];
    for (int lane = 0; lane < warp_size; lane++) {
        const MmaOperands& o = *static_cast<const MmaOperands*>(operands[lane]);
        const int row = lane / 4, column = lane % 4 * 2;
        for (int j = 0; j < 2; j++) {
            left[row][column + j] = half(o.a[0], j);
            left[row + 8][column + j] = half(o.a[1], j);
            left[row][column + 8 + j] = half(o.a[2], j);
            left[row + 8][column + 8 + j] = half(o.a[3], j);
            right[column + j][row] = half(o.b0, j);
            right[column + 8 + j][row] = half(o.b1, j);
            sums[row][column + j] = o.sums[j];
            sums[row + 8][column + j] = o.sums[2 + j];
        }
    }
    for (int r = 0; r < 16; r++) {
        for (int k = 0; k < 16; k++) {
            for (int c = 0; c < 8; c++) sums[r][c] += left[r][k] * right[k][c];
        }
    }
    for (int lane = 0; lane < warp_size; lane++) {
        float* result = static_cast<const MmaOperands*>(operands[lane])->sums;
        const int row = lane / 4, column = lane % 4 * 2;
        for (int j = 0; j < 2; j++) {
            result[j] = sums[row][column + j];
            result[2 + j] = sums[row + 8][column + j];
        }
    }
}

}  // namespace simt::cpu
