// orthogonalise.h: a matrix whose norm is at most 1 becomes roughly the nearest one with orthonormal rows, or
//   columns if it has fewer of them: five steps of a Newton-Schulz iteration
//   A = x x^T,  B = b A + c A A,  x = a x + B x
//   x with fewer columns than rows: A = x^T x and x = a x + x B, so nothing is transposed in memory.
//   A step turns each singular value s into a s + b s^3 + c s^5, since A has the squares for eigenvalues.
//   Five bring all from 0.002 to 1 between 0.68 and 1.2; smaller ones grow by up to a^5 = 485.
//   Jordan et al. 2024, kellerjordan.github.io/posts/muon, whose a, b and c these are
#pragma once
#include <algorithm>
#include <utility>

#include "kernels/gemm/gemm.h"

constexpr int orthogonalise_steps = 5;

// Scratch of one matrix: `other` is as large as it, gram and polynomial are the square of its shorter side.
template <class T>
struct OrthogonaliseScratch {
    T *other, *gram, *polynomial;
};

// Returns where the result is: scratch.other, while x then holds the step before. 5 (4 n n k + 2 n n n)
// operations, n the shorter side and k the longer one; bound by arithmetic.
template <class T>
T* orthogonalise(Gemm& gemm, T* x, const OrthogonaliseScratch<T>& scratch, size_t rows, size_t columns,
                 stream_t stream) {
    constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    const bool tall = rows > columns;
    const size_t n = std::min(rows, columns), k = std::max(rows, columns);
    T *const gram = scratch.gram, *const polynomial = scratch.polynomial, *to = scratch.other;
    for (int step = 0; step < orthogonalise_steps; step++) {
        gemm.product(gram, {x, tall}, {x, !tall}, n, n, k, stream);
        gemm.product(polynomial, {gram}, {gram}, n, n, n, stream, c, b, gram);
        if (tall) gemm.product(to, {x}, {polynomial}, rows, columns, n, stream, 1.0f, a, x);
        else gemm.product(to, {polynomial}, {x}, rows, columns, n, stream, 1.0f, a, x);
        std::swap(x, to);
    }
    return x;
}

// Bytes of workspace that its products need of a Gemm.
template <class T>
size_t orthogonalise_workspace_bytes(size_t rows, size_t columns) {
    const size_t n = std::min(rows, columns), k = std::max(rows, columns);
    return std::max({Gemm::product_workspace_bytes<T>(n, n, k), Gemm::product_workspace_bytes<T>(n, n, n),
                     Gemm::product_workspace_bytes<T>(rows, columns, n)});
}
