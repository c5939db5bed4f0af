// blocked_product.h: the arithmetic of a matrix product as a GPU does it, fast enough on one core to train
// with.
//   Inputs are converted to fp32, each product is exact or added by one fused multiply-add, and an element of
//   the result is one fp32 accumulator that takes its terms in the order of k.
#pragma once
#include <cstddef>

namespace software_gpu {

// The ways to make fp32 inputs TF32, which has 10 bits of mantissa.
//   nearest: as cvt.rna.tf32.f32 does, halves away from zero. truncate: the lower 13 bits are ignored, which
//   is all that mma.sync does by itself.
enum class Tf32 { none, nearest, truncate };

// op(values): (rows, columns) column-major with this leading dimension, or the transpose of what is stored
// so.
struct ProductInput {
    const void* values;
    bool bf16;  // else fp32
    bool transposed;
    size_t leading;
    Tf32 tf32 = Tf32::none;

    // This many elements of column `column` from row `first` on, as stored, in fp32.
    void load(float* to, size_t first, size_t column, size_t count) const;
};

struct ProductRange {
    size_t begin, end;
};

// sum (m, columns) += op(A) op(B), of these columns of op(B) and these terms of k; sum is contiguous and
// column-major. truncates: every addition is rounded towards zero, as a tensor core cuts off the aligned
// products.
void add_product(float* sum, const ProductInput& a, const ProductInput& b, size_t m, ProductRange columns,
                 ProductRange terms, bool truncates);

}  // namespace software_gpu
