// hugging_face.h: writes a GPT-2 as a folder that Hugging Face's transformers opens with from_pretrained.
//   config.json             the model's shape, and everything else as GPT2LMHeadModel has it by default,
//                           without dropout
//   generation_config.json  the tokens that begin, end and pad a text, which config.json numbers too;
//                           unchanged if it comes with the tokenizer or says more than that
//   model.safetensors       fp32; names as in tensor_table.h; weights of matmuls are (in, out), the transpose
//                           of ours; wte has V rows;
//                           the head is wte and is not stored
//   the tokenizer's files   tokenizer_files.h; none for the tokenizer "none"
// https://huggingface.co/docs/transformers/model_doc/gpt2
#pragma once
#include <string>
#include <vector>

#include "trainer/model/tensor_table.h"
#include "trainer/tokenizer/tokenizer.h"

// Writes model.safetensors at path from the flat buffer of master weights: table.elements() floats, tensors
// at the table's offsets. Needs memory for one more tensor. Error if it cannot be written.
void write_hugging_face_model(const std::string& path, const TensorTable& table, const float* masters);

// Writes all other files into an existing folder and returns their names. Each file is complete or absent.
std::vector<std::string> write_hugging_face_metadata(const std::string& folder, const GPT2Config& config,
                                                     const Tokenizer& tokenizer);

// True if Hugging Face's tensor is the transpose of ours.
bool is_transposed(Kind kind);
// out (columns, rows) = the transpose of inp (rows, columns).
void transpose(float* out, const float* inp, size_t rows, size_t columns);
