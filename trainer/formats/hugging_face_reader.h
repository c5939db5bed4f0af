// hugging_face_reader.h: opens a folder that transformers' save_pretrained wrote, or that hugging_face.h did.
//   config.json with GPT2Config's fields, or their other names (hidden_size for n_embd); model.safetensors,
//   or several files named by model.safetensors.index.json; F32, F16, BF16 or F64 weights under names with or
//   without the prefix "transformer."; lm_head.weight may be there if it equals wte, and must be if
//   tie_word_embeddings is false; the causal masks h.N.attn.bias and h.N.attn.masked_bias of old versions are
//   passed over.
#pragma once
#include <memory>
#include <string>

#include "trainer/formats/model_file.h"

// UsageError in one line that names the file, and the field or tensor: for anything damaged, missing, surplus
// or of the wrong shape, and for every setting that would make it compute something else than our GPT-2.
std::unique_ptr<ModelFile> open_hugging_face_model(const std::string& folder);
