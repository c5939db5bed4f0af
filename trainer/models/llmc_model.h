// llmc_model.h: GPT-2s in the .bin format of llm.c, which its Python scripts and trainers write and read.
//   256 int32: [0] 20240326  [1] 3 for fp32, 5 for bf16  [2] context  [3] V  [4] L  [5] NH  [6] C  [7] Vp;
//   the rest is zero.
//   Then the tensors, ordered by GPT-2's entry in the list of families (gpt2/gpt2_files.cpp); weights are
//   (out, in) as in memory here. The token embedding has Vp rows, of which the last Vp - V have no meaning.
//   https://github.com/karpathy/llm.c, train_gpt2.py: write_model
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "trainer/models/model_file.h"

enum class LlmcVersion : int32_t { fp32 = 3, bf16 = 5 };

// Throws a one-line UsageError that names the file if it has another format or if its size does not match
// the header.
std::unique_ptr<ModelFile> open_llmc_model(const std::string& path);

// Writes the model with Vp = ModelConfig::Vp() and zeros in the padded rows; bf16 rounds to nearest, ties to
// even. The file is complete or absent. before_tensor is called before each tensor; the writing ends with its
// exception. UsageError if llm.c has no such model; Error if it cannot be written.
void write_llmc_model(
    const std::string& path, const ModelFile& model, LlmcVersion version,
    const std::function<void()>& before_tensor = [] {});
