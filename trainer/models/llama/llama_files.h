// llama_files.h: Llama's entry in the list of families: its sizes by name and config.json.
//   https://huggingface.co/docs/transformers/model_doc/llama
#pragma once
#include "trainer/models/families.h"

FamilyDescription llama_family();
FamilyDescription nanochat_family();
