// orthogonalise.h: each matrix of a batch, whose norm is at most 1, becomes roughly the nearest one with
//   orthonormal rows, or columns if it has fewer of them: five steps of a Newton-Schulz iteration
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

// Scratch of a batch: `other` is as large as the batch, and gram and polynomial have room for the square of
// the shorter side of each matrix.
template <class T>
struct OrthogonaliseScratch {
    T *other, *gram, *polynomial;
};

// x (batch, rows, columns). Returns where the results are: in scratch.other, while x then holds the step
// before. For each matrix 5 (4 n n k + 2 n n n) operations, n the shorter side and k the longer one, or
// 5 (3 n n k + n n n) if symmetric products are computed by halves; bound by arithmetic.
template <class T>
T* orthogonalise(Gemm& gemm, T* x, const OrthogonaliseScratch<T>& scratch, size_t batch, size_t rows,
                 size_t columns, stream_t stream) {
    constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    const bool tall = rows > columns;
    const size_t n = std::min(rows, columns), k = std::max(rows, columns);
    T *const gram = scratch.gram, *const polynomial = scratch.polynomial, *to = scratch.other;
    const Gemm::Product gram_of_x{.M = n, .N = n, .K = k, .batch = batch, .symmetric = true},
        polynomial_of_gram{.M = n, .N = n, .K = n, .alpha = c, .beta = b, .batch = batch, .symmetric = true},
        next_x{.M = rows, .N = columns, .K = n, .beta = a, .batch = batch};
    for (int step = 0; step < orthogonalise_steps; step++) {
        gemm.product(gram_of_x, gram, {x, tall}, {x, !tall}, stream);
        gemm.product(polynomial_of_gram, polynomial, {gram}, {gram}, stream, gram);
        if (tall) gemm.product(next_x, to, {x}, {polynomial}, stream, x);
        else gemm.product(next_x, to, {polynomial}, {x}, stream, x);
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
