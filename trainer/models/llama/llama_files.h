// llama_files.h: the entries of Llama, Qwen3 and nanochat in the list of families: their sizes by
//   name and config.json.
//   https://huggingface.co/docs/transformers/model_doc/llama
#pragma once
#include "trainer/models/families.h"

FamilyDescription llama_family();
FamilyDescription qwen3_family();
FamilyDescription nanochat_family();
