#include "trainer/models/families.h"
#include "trainer/models/gpt2/gpt2.h"
#include "trainer/models/llama/llama.h"

template <class T>
std::unique_ptr<Family<T>> make_family(const ModelConfig& config) {
    if (&family_of(config) == &families().front()) return std::make_unique<GPT2<T>>(config);
    return std::make_unique<Llama<T>>(config);
}

template std::unique_ptr<Family<float>> make_family(const ModelConfig&);
template std::unique_ptr<Family<bfloat16>> make_family(const ModelConfig&);
