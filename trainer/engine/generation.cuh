// generation.cuh: matrix products of few rows, which a token of every sample needs
#pragma once
#include "kernels/decode/decode_matmul.cuh"
#include "trainer/engine/generation.h"

// out (K, OC) = inp (K, C) weight^T + bias, then the activation; bias may be nullptr. These kernels' sums do
// not depend on the number of rows: a sample is the same alone and among others. (On a core with AMX the
// library is faster from 8 rows on in bf16, 152 against 186 us for 768 x 768, and from 24 on in fp32, 432
// against 499; but its roundings depend on the number of rows.)
template <class T>
void decode_product(T* out, const T* inp, const typename GenerationState<T>::Weight& weight, const T* bias,
                    DecodeMatmulShape shape, Activation activation, stream_t stream) {
    weight.use([&](const auto* values) {
        decode_matmul(out, inp, values, weight.scales, bias, shape, activation, stream);
    });
}
