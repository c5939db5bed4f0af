// cost.h: what each operation of a step must move and compute at the least: its tensors read and written
//   once, not what an implementation happens to do. Vectors of C elements beside tensors of N*C are left out.
#pragma once
#include <array>
#include <cstddef>

#include "kernels/attention/attention.h"

struct Cost {
    size_t bytes = 0;
    size_t flops = 0;
    std::array<size_t, 3> product = {};  // N, C and OC of a matrix product of gemm.h; 0: something else
};

// What a machine can do at most, as it was measured (run/peaks.h).
struct Peaks {
    double bytes_per_second = 0, flops_per_second = 0;
};

namespace cost {

// Reads and writes `tensors` of `elements` of T, all in all.
template <class T>
constexpr Cost pass(size_t tensors, size_t elements) {
    return {.bytes = tensors * elements * sizeof(T)};
}

template <class T>  // forward: rows of wte, out. backward: dout, and as much of dwte
constexpr Cost encoder(size_t N, size_t C) {
    return pass<T>(2, N * C);
}
template <class T>
constexpr Cost layernorm(size_t N, size_t C) {
    return pass<T>(2, N * C);
}
template <class T>  // inp and branch, their sum and what it is normalised to
constexpr Cost residual_layernorm(size_t N, size_t C) {
    return pass<T>(4, N * C);
}
template <class T>  // dout and inp, dinp, and a gradient of the residual stream that it is added to
constexpr Cost layernorm_backward(size_t N, size_t C, bool residual) {
    return pass<T>(residual ? 4 : 3, N * C);
}
template <class T>
constexpr Cost gelu(size_t elements) {
    return pass<T>(2, elements);
}
template <class T>
constexpr Cost gelu_backward(size_t elements) {
    return pass<T>(3, elements);
}
template <class T>  // logits, and their gradient in the same place
constexpr Cost classifier(size_t N, size_t Vp, bool write_gradient) {
    return pass<T>(write_gradient ? 2 : 1, N * Vp);
}

// forward and backward_input. tensors_of_C, tensors_of_OC: further (N, C) and (N, OC) that an epilogue reads
// or writes.
template <class T>
constexpr Cost matmul(size_t N, size_t C, size_t OC, size_t tensors_of_C = 0, size_t tensors_of_OC = 0) {
    return {.bytes = ((1 + tensors_of_C) * N * C + OC * C + (1 + tensors_of_OC) * N * OC) * sizeof(T),
            .flops = 2 * N * C * OC,
            .product = {N, C, OC}};
}

// backward_weight; the fp32 gradient is written, or read and written.
template <class T>
constexpr Cost matmul_weight(size_t N, size_t C, size_t OC, bool accumulate) {
    return {.bytes = (N * C + N * OC) * sizeof(T) + (accumulate ? 2 : 1) * OC * C * sizeof(float),
            .flops = 2 * N * C * OC,
            .product = {N, C, OC}};
}

// Causal: half of `products` products of (T, HS) with (T, HS) a head, over `tensors` of (B, T, NH, HS).
template <class T>
constexpr Cost attention(AttentionShape s, size_t products, size_t tensors) {
    const size_t rows = static_cast<size_t>(s.B) * static_cast<size_t>(s.NH) * static_cast<size_t>(s.T),
                 count = rows * static_cast<size_t>(s.HS);
    return {.bytes = tensors * count * sizeof(T) + rows * sizeof(float),
            .flops = products * count * static_cast<size_t>(s.T)};
}
template <class T>  // scores, and their mean of the values; reads q, k, v
constexpr Cost attention_forward(AttentionShape s) {
    return attention<T>(s, 2, 4);
}
// scores again, and the gradients of probabilities, q, k and v; reads q, k, v, out and dout
template <class T>
constexpr Cost attention_backward(AttentionShape s) {
    return attention<T>(s, 5, 8);
}

// Gradient read, master and `buffers` of the optimizer read and written, in fp32; and the rounded parameter,
// where there is one.
constexpr Cost update(size_t elements, size_t buffers, size_t rounded_bytes) {
    return {.bytes = elements * ((3 + 2 * buffers) * sizeof(float) + rounded_bytes)};
}

}  // namespace cost
