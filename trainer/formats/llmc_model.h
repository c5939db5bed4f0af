// llmc_model.h: models in the .bin format of llm.c, which its Python scripts and trainers write and read.
//   256 int32: [0] 20240326  [1] 3 for fp32, 5 for bf16  [2] context  [3] V  [4] L  [5] NH  [6] C  [7] Vp;
//   the rest is zero.
//   Then the tensors by kind, of all layers one after the other: wte (Vp, C)  wpe (context, C)  ln1w ln1b
//   qkvw qkvb  attprojw attprojb ln2w ln2b  fcw fcb  fcprojw fcprojb  lnfw lnfb; weights (out, in) as in
//   memory here. The last Vp - V rows of wte have no meaning. https://github.com/karpathy/llm.c,
//   train_gpt2.py: write_model
#pragma once
#include <memory>
#include <string>

#include "trainer/formats/model_file.h"

enum class LlmcVersion : int32_t { fp32 = 3, bf16 = 5 };

// Throws a one-line UsageError that names the file if it has another format or if its size does not match
// the header.
std::unique_ptr<ModelFile> open_llmc_model(const std::string& path);

// Writes the model with Vp = GPT2Config::Vp() and zeros in the padded rows; bf16 rounds to nearest, ties to
// even. The file is complete or absent. Error if it cannot be written.
void write_llmc_model(const std::string& path, const ModelFile& model, LlmcVersion version);
