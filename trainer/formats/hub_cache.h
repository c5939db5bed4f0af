// hub_cache.h: finds models by their name on Hugging Face's hub in the local cache of its programs. Nothing
// is downloaded.
//   CACHE/models--ORGANIZATION--NAME/refs/main                            names the snapshot
//   CACHE/models--ORGANIZATION--NAME/snapshots/SNAPSHOT/model.safetensors and the other files, links mostly
//   CACHE is $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub.
//   https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#pragma once
#include <string>

// The cached folder of model `name`, which is "ORGANIZATION/NAME" or one of GPT-2's short names (gpt2,
// gpt2-medium, gpt2-large, gpt2-xl, distilgpt2); "" for any other text. If the model is not in the cache, a
// UsageError with the command that fetches it and its tokenizer. The same UsageError if the weights are
// missing, as after an interrupted download; another one if they are a pickle.
std::string cached_model(const std::string& name);

// The command that fetches the model of a cached folder; "" for a folder that is not in a cache.
std::string fetch_command_for(const std::string& snapshot);

// The refusal of a folder that has only pytorch_model.bin. name: as transformers opens it.
std::string pickle_message(const std::string& folder, const std::string& name);

// True for the names of OpenAI's GPT-2s and distilgpt2, and for their folders in a cache of the hub.
bool is_gpt2_of_openai(const std::string& name);
