// hub_cache.h: models by their name on Hugging Face's hub, from the cache that its programs keep on this
// machine. Nothing is downloaded.
//   CACHE/models--ORGANIZATION--NAME/refs/main                            names the snapshot
//   CACHE/models--ORGANIZATION--NAME/snapshots/SNAPSHOT/model.safetensors and the other files, links mostly
//   CACHE is $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub.
//   https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#pragma once
#include <string>

// The folder of model `name`: "ORGANIZATION/NAME", or GPT-2's short names (gpt2, gpt2-medium, gpt2-large,
// gpt2-xl, distilgpt2). "" if it is not in the cache, unless the name is one of those. UsageError, with the
// command that fetches it, for those and for a model whose weights are not there, as after a download that
// broke off.
std::string cached_model(const std::string& name);
