// hugging_face_reader.h: opens a folder that was written by transformers' save_pretrained or by
// hugging_face.h.
//   config.json has ModelConfig's fields or their other names (hidden_size for n_embd). The weights are in
//   model.safetensors, or in several files named by model.safetensors.index.json, as F32, F16, BF16 or F64,
//   under names with or without the prefix "transformer.". lm_head.weight may be present if it equals wte,
//   and must be present if tie_word_embeddings is false. The causal masks h.N.attn.bias and
//   h.N.attn.masked_bias of old versions are ignored.
#pragma once
#include <memory>
#include <string>

#include "trainer/models/model_file.h"

// Throws a one-line UsageError that names the file and the field or tensor for anything damaged, missing,
// surplus or of the wrong shape, and for every setting with which the model would differ from ours.
std::unique_ptr<ModelFile> open_hugging_face_model(const std::string& folder);
