// quantized_weights.h: which weights the decoder keeps as int8 (kernels/quantize.cuh), and a model with
// these weights for evaluation.
#pragma once
#include <map>
#include <string>

template <class T>
class Model;

// The values of --quantize.
inline const std::map<std::string, bool> quantizations = {{"none", false}, {"int8", true}};

// Rounds every matrix to int8 and back, so that the model's loss is that of the quantized weights. With
// bfloat16 the dequantized values are rounded once more. The decoder rounds them so for a prompt only, if at
// all (Gemm::forward_int8), and otherwise multiplies by the int8 values themselves.
template <class T>
void quantize_weights(Model<T>& model);
