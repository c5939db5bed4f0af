// hub_cache.h: finds models by their name on Hugging Face's hub in the local cache of its programs. Nothing
// is downloaded.
//   CACHE/models--ORGANIZATION--NAME/refs/main                            names the snapshot
//   CACHE/models--ORGANIZATION--NAME/snapshots/SNAPSHOT/model.safetensors and the other files, links mostly
//   CACHE is $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub.
//   https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#pragma once
#include <string>

// The cached folder of model `name`, which is "ORGANIZATION/NAME" or one of GPT-2's short names (gpt2,
// gpt2-medium, gpt2-large, gpt2-xl, distilgpt2). "" if a model is not in the cache; for a short name, a
// UsageError with the command that fetches it. The same UsageError if the weights are missing, as after an
// interrupted download.
std::string cached_model(const std::string& name);
