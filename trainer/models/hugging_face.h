// hugging_face.h: writes a model as a folder that Hugging Face's transformers opens with from_pretrained.
//   config.json             the model's shape, and everything else as its class has it by default, without
//                           dropout
//   generation_config.json  the tokens that begin, end and pad a text, which config.json numbers too;
//                           unchanged if it comes with the tokenizer or says more than that
//   model.safetensors       fp32; names as in the family's table; tensors that the table marks as transposed
//                           are the transpose of ours; padding is left out, and so is a head that is another
//                           tensor
//   the tokenizer's files   tokenizer_files.h; none for the tokenizer "none"
// https://huggingface.co/docs/transformers
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "trainer/engine/model_config.h"
#include "trainer/engine/tensor_table.h"
#include "trainer/tokenizer/tokenizer.h"

// Writes model.safetensors at path from the flat buffer of master weights: table.elements() floats, tensors
// at the table's offsets. Needs memory for one more tensor. Error if it cannot be written.
void write_hugging_face_model(const std::string& path, const TensorTable& table, const float* masters);

// The same for weights that are not all in memory at once. values_of is called once for every tensor and
// returns its values, valid until the next call; the writing ends with its exception.
void write_hugging_face_model(const std::string& path, const TensorTable& table,
                              const std::function<const float*(const Tensor&)>& values_of);

// Writes all other files into an existing folder. Each file is complete or absent.
void write_hugging_face_metadata(const std::string& folder, const ModelConfig& config,
                                 const Tokenizer& tokenizer);

// out (columns, rows), whose rows are `stride` apart, = the transpose of inp (rows, columns). Fastest with a
// multiple of transpose_tile rows.
inline constexpr size_t transpose_tile = 32;
void transpose(float* out, size_t stride, const float* inp, size_t rows, size_t columns);
