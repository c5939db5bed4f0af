// hugging_face_reader.h: opens a folder that was written by transformers' save_pretrained or by
// hugging_face.h.
//   config.json names the family (model_type; only GPT-2's may lack it), which reads the other fields. The
//   weights are in model.safetensors, or in several files named by model.safetensors.index.json, as F32, F16,
//   BF16 or F64, under names with or without the family's prefix. A tied model may have lm_head.weight if it
//   equals the token embedding; an untied one must have it. Tensors without weights that old versions saved,
//   such as causal masks, are ignored.
#pragma once
#include <memory>
#include <string>

#include "trainer/models/model_file.h"

// Throws a one-line UsageError that names the file and the field or tensor for anything damaged, missing,
// surplus or of the wrong shape, and for every setting with which the model would differ from ours.
std::unique_ptr<ModelFile> open_hugging_face_model(const std::string& folder);
