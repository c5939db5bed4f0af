// open_model.h: opens a trained model by its path, which may be:
//   a checkpoint of ours        a Hugging Face model with a state.json, by which every file in it but the
//                               optimizer's must be whole
//   a run's folder              its newest checkpoint that is whole in this sense
//   a Hugging Face model        model.safetensors, or the shards that model.safetensors.index.json names
//                               (hugging_face_reader.h)
//   a .bin of llm.c             llmc_model.h
//   gpt2, ORGANIZATION/NAME     a Hugging Face model in the cache of their hub (hub_cache.h), if no file or
//                               folder of that name exists
// Headers are not trusted: a field that does not match the file or the family is a UsageError that names the
// file and the tensor or field, and memory is allocated only for data that the file has.
#pragma once
#include <memory>
#include <string>

#include "trainer/models/model_file.h"

enum class WhichCheckpoint { newest, best };

// UsageError if the model does not exist, is damaged, or is of no family of models/families.h. With
// WhichCheckpoint::best, path must be a run's folder with a checkpoint whose validation loss was measured.
std::unique_ptr<ModelFile> open_model(const std::string& path,
                                      WhichCheckpoint which = WhichCheckpoint::newest);
