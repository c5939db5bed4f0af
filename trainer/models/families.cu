#include "system/error.h"
#include "trainer/models/families.h"
#include "trainer/models/gpt2/gpt2.h"
#include "trainer/models/llama/llama.h"

template <class T>
std::unique_ptr<Family<T>> make_family(const ModelConfig& config) {
    if (config.family == "gpt2") return std::make_unique<GPT2<T>>(config);
    if (config.family == "llama" || config.family == "qwen3" || config.family == "nanochat")
        return std::make_unique<Llama<T>>(config);
    throw Error("no family is called " + std::string(config.family));
}

template std::unique_ptr<Family<float>> make_family(const ModelConfig&);
template std::unique_ptr<Family<bfloat16>> make_family(const ModelConfig&);
