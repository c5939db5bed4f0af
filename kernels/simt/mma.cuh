// mma.cuh: products of small matrices by all lanes of a warp, on tensor cores (PTX: mma.sync.m16n8k16,
//   ldmatrix.x4)
//   The matrices lie in registers across the lanes. With row = lane / 4 and column = lane % 4 * 2, a
//   lane holds
//     of the left factor, (16, 16) bf16:  4 pairs, which begin at (row, column) (row + 8, column)
//                                         (row, column + 8) (row + 8, column + 8)
//     of the right factor, (16, 8) bf16:  2 pairs, in column lane / 4: rows column and column + 1,
//                                         rows column + 8 and column + 9
//     of the sums, (16, 8) fp32:          4 values, at (row, column) (row, column + 1)
//                                         (row + 8, column) (row + 8, column + 1)
//   Two (16, 8) sums side by side, rounded to bf16, are therefore a left factor in the same lanes.
#pragma once
#include "kernels/simt/target.h"
#include "kernels/simt/vec.cuh"

namespace simt {

// Two bf16 of one register, the first in its lower half.
__device__ __forceinline__ uint32_t bf16_pair(float first, float second) {
#ifdef __CUDACC__
    uint32_t pair = 0;
    FROM_SM80(asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first)));
    return pair;
#else
    return static_cast<uint32_t>(bfloat16(second).bits) << 16 | bfloat16(first).bits;
#endif
}
__device__ __forceinline__ Vec<float, 2> floats_of_pair(uint32_t pair) {
    bfloat16 first, second;
    first.bits = static_cast<uint16_t>(pair);
    second.bits = static_cast<uint16_t>(pair >> 16);
    return {static_cast<float>(first), static_cast<float>(second)};
}
__device__ __forceinline__ uint32_t load_pair(const bfloat16* address) {
    const Vec<bfloat16, 2> pair = load_raw<2>(address);
    return static_cast<uint32_t>(pair[1].bits) << 16 | pair[0].bits;
}

// sums += left * right; right is the pairs b0 and b1
__device__ __forceinline__ void mma(Vec<float, 4>& sums, const Vec<uint32_t, 4>& left, uint32_t b0,
                                    uint32_t b1, [[maybe_unused]] Here here = Here::now()) {
#ifdef __CUDACC__
    FROM_SM80(
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
            "%9}, {%0, %1, %2, %3};"
            : "+f"(sums.x[0]), "+f"(sums.x[1]), "+f"(sums.x[2]), "+f"(sums.x[3])
            : "r"(left.x[0]), "r"(left.x[1]), "r"(left.x[2]), "r"(left.x[3]), "r"(b0), "r"(b1)));
#else
    cpu::MmaOperands operands{sums.x, left.x, b0, b1};
    cpu::warp_together(&operands, &cpu::mma_together, {"mma", here});
#endif
}

// Loads four (8, 8) matrices from shared memory. Lane 8 i + r passes the address of row r of matrix i,
// 16 bytes aligned to 16. Element i of every lane's result is the pair of matrix i in row lane / 4 that
// begins at column lane % 4 * 2.
__device__ __forceinline__ Vec<uint32_t, 4> ldmatrix(const bfloat16* row,
                                                     [[maybe_unused]] Here here = Here::now()) {
    Vec<uint32_t, 4> result{};
#ifdef __CUDACC__
    [[maybe_unused]] const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    FROM_SM80(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                           : "=r"(result.x[0]), "=r"(result.x[1]), "=r"(result.x[2]), "=r"(result.x[3])
                           : "r"(address)
                           : "memory"));
#else
    detail::check_alignment(row, 16);
    cpu::LdmatrixOperands operands{result.x, row};
    cpu::warp_together(&operands, &cpu::ldmatrix_together, {"ldmatrix", here});
#endif
    return result;
}

// Loads the transposes: element i of every lane's result is the pair of matrix i in column lane / 4 that
// begins at row lane % 4 * 2.
__device__ __forceinline__ Vec<uint32_t, 4> ldmatrix_trans(const bfloat16* row,
                                                           [[maybe_unused]] Here here = Here::now()) {
    Vec<uint32_t, 4> result{};
#ifdef __CUDACC__
    [[maybe_unused]] const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    FROM_SM80(asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                           : "=r"(result.x[0]), "=r"(result.x[1]), "=r"(result.x[2]), "=r"(result.x[3])
                           : "r"(address)
                           : "memory"));
#else
    detail::check_alignment(row, 16);
    cpu::LdmatrixOperands operands{result.x, row};
    cpu::warp_together(&operands, &cpu::ldmatrix_trans_together, {"ldmatrix_trans", here});
#endif
    return result;
}

}  // namespace simt
