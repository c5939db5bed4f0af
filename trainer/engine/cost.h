// cost.h: the least that each operation of a step must move and compute: each tensor is read and written
// once, whatever an implementation does. Vectors of C elements beside tensors of N*C are not counted.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>

#include "kernels/attention/attention.h"

struct Cost {
    size_t bytes = 0;
    size_t flops = 0;
    std::array<size_t, 3> product = {};  // N, C and OC of a matrix product of gemm.h; 0: another operation
};

// The machine's peak rates, as measured (run/peaks.h).
struct Peaks {
    double bytes_per_second = 0, flops_per_second = 0;
};
inline Peaks larger(const Peaks& a, const Peaks& b) {
    return {std::max(a.bytes_per_second, b.bytes_per_second),
            std::max(a.flops_per_second, b.flops_per_second)};
}

namespace cost {

// `tensors` reads or writes in all, each of `elements` values of type T.
template <class T>
constexpr Cost pass(size_t tensors, size_t elements) {
    return {.bytes = tensors * elements * sizeof(T)};
}

template <class T>  // forward: reads rows of wte, writes out; backward: reads dout, writes as much of dwte
constexpr Cost encoder(size_t N, size_t C) {
    return pass<T>(2, N * C);
}
template <class T>
constexpr Cost layernorm(size_t N, size_t C) {
    return pass<T>(2, N * C);
}
template <class T>  // reads inp and branch; writes their sum and its normalisation
constexpr Cost residual_layernorm(size_t N, size_t C) {
    return pass<T>(4, N * C);
}
template <class T>  // reads dout and inp; writes dinp, or adds it to the residual stream's gradient
constexpr Cost layernorm_backward(size_t N, size_t C, bool residual) {
    return pass<T>(residual ? 4 : 3, N * C);
}
template <class T>  // turns q and k, in place, and may keep them as they were
constexpr Cost rope(AttentionShape s, bool keeps = false) {
    return pass<T>(keeps ? 3 : 2, static_cast<size_t>(s.B) * static_cast<size_t>(s.T) *
                                      static_cast<size_t>((s.NH + s.NKV) * s.HS));
}
template <class T>  // where heads are normalised, they are read, too
constexpr Cost rope_backward(AttentionShape s, bool normalised) {
    return {.bytes = rope<T>(s).bytes / 2 * (normalised ? 3 : 2)};
}
template <class T>  // reads gate and up, writes their product
constexpr Cost swiglu(size_t elements) {
    return pass<T>(3, elements);
}
template <class T>  // reads gate, up and the product's gradient; writes the gradients of gate and up
constexpr Cost swiglu_backward(size_t elements) {
    return pass<T>(5, elements);
}
template <class T>
constexpr Cost activation(size_t elements) {
    return pass<T>(2, elements);
}
template <class T>
constexpr Cost activation_backward(size_t elements) {
    return pass<T>(3, elements);
}
template <class T>  // reads the logits; their gradient overwrites them
constexpr Cost classifier(size_t N, size_t Vp, bool write_gradient) {
    return pass<T>(write_gradient ? 2 : 1, N * Vp);
}

// Costs of forward and backward_input. tensors_of_C and tensors_of_OC count the further (N, C) and (N,
// OC) tensors that an epilogue reads or writes.
template <class T>
constexpr Cost matmul(size_t N, size_t C, size_t OC, size_t tensors_of_C = 0, size_t tensors_of_OC = 0) {
    return {.bytes = ((1 + tensors_of_C) * N * C + OC * C + (1 + tensors_of_OC) * N * OC) * sizeof(T),
            .flops = 2 * N * C * OC,
            .product = {N, C, OC}};
}

// Costs of backward_weight. The fp32 gradient is written or, to accumulate, read and written.
template <class T>
constexpr Cost matmul_weight(size_t N, size_t C, size_t OC, bool accumulate) {
    return {.bytes = (N * C + N * OC) * sizeof(T) + (accumulate ? 2 : 1) * OC * C * sizeof(float),
            .flops = 2 * N * C * OC,
            .product = {N, C, OC}};
}

// Causal, so half of the arithmetic of `products` products of (T, HS) with (T, HS) in each head. Reads
// and writes `tensors` tensors, half of (B, T, NH, HS) and half of (B, T, NKV, HS).
template <class T>
constexpr Cost attention(AttentionShape s, size_t products, size_t tensors) {
    const size_t rows = static_cast<size_t>(s.B) * static_cast<size_t>(s.NH) * static_cast<size_t>(s.T),
                 count = rows * static_cast<size_t>(s.HS);
    return {.bytes = tensors * (count + count / static_cast<size_t>(s.queries())) / 2 * sizeof(T) +
                     rows * sizeof(float),
            .flops = products * count * static_cast<size_t>(s.T)};
}
template <class T>  // computes scores and weighted means of the values; reads q, k, v
constexpr Cost attention_forward(AttentionShape s) {
    return attention<T>(s, 2, 4);
}
// Computes the scores again and the gradients of probabilities, q, k and v; reads q, k, v, out and dout.
template <class T>
constexpr Cost attention_backward(AttentionShape s) {
    return attention<T>(s, 5, 8);
}

// Reads the gradient; reads and writes the master and `buffers` optimizer buffers, all in fp32; and
// writes the rounded parameter, if there is one.
constexpr Cost update(size_t elements, size_t buffers, size_t rounded_bytes) {
    return {.bytes = elements * ((3 + 2 * buffers) * sizeof(float) + rounded_bytes)};
}

// Reads the n elements of Muon's step in fp32 twice, for their norm and to divide them by it, and writes them
// as T.
template <class T>
constexpr Cost muon_normalise(size_t n) {
    return {.bytes = n * (2 * sizeof(float) + sizeof(T))};
}
// Reads x, reads and writes the master, and writes the rounded parameter, if there is one.
template <class T>
constexpr Cost muon_update(size_t n) {
    return {.bytes = n * (sizeof(T) + 2 * sizeof(float) + (sizeof(T) < sizeof(float) ? sizeof(T) : 0))};
}
// For each matrix of a batch, each of five steps reads x twice and writes it once, and writes and reads two
// squares of its shorter side. These are symmetric: one half's operations count, though a GPU computes both.
template <class T>
constexpr Cost orthogonalise(size_t batch, size_t rows, size_t columns) {
    const size_t n = std::min(rows, columns), k = std::max(rows, columns);
    return {.bytes = batch * 5 * (3 * n * k + 4 * n * n) * sizeof(T),
            .flops = batch * 5 * (3 * n * n * k + n * n * n)};
}

}  // namespace cost
