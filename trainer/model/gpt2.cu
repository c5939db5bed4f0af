#include "trainer/model/gpt2_forward_backward.cuh"
#include "trainer/model/gpt2_inspect.cuh"
#include "trainer/model/gpt2_memory.cuh"
#include "trainer/model/gpt2_state.cuh"
#include "trainer/model/gpt2_update.cuh"

size_t total_bytes(const MemoryPlan& plan) {
    size_t bytes = 0;
    for (const auto& [name, part] : plan) bytes += part;
    return bytes;
}

template class GPT2<float>;
template class GPT2<bfloat16>;
