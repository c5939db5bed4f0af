// quantized_weights.h: which weights the decoder keeps as int8 (kernels/quantize.cuh), and a model with these
// weights for evaluation.
#pragma once
#include <map>
#include <string>

#include "trainer/model/tensor_table.h"

template <class T>
class GPT2;

// The matrices: those of the layers and wte, which is also the head. Positions, biases and layernorms are
// small, or looked up rather than multiplied.
inline bool is_quantized(const Tensor& tensor) {
    return tensor.shape.size() == 2 && tensor.kind != Kind::wpe;
}

// What --quantize takes.
inline const std::map<std::string, bool> quantizations = {{"none", false}, {"int8", true}};

// Replaces every matrix by what its int8 form stands for, so that the model's loss is that of the quantized
// weights. With bfloat16 they are rounded once more, where the decoder multiplies by the int8 numbers
// themselves.
template <class T>
void quantize_weights(GPT2<T>& model);
