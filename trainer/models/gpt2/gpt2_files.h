// gpt2_files.h: GPT-2's entry in the list of families: its sizes by name, config.json, llm.c's order.
//   https://huggingface.co/docs/transformers/model_doc/gpt2
#pragma once
#include "trainer/models/families.h"

FamilyDescription gpt2_family();
