#include "trainer/engine/model.cuh"
#include "trainer/engine/model_evaluation.cuh"
#include "trainer/engine/model_memory.cuh"
#include "trainer/engine/optimizer_buffers.cuh"
#include "trainer/engine/parameter_update.cuh"
#include "trainer/engine/parameters.cuh"

size_t total_bytes(const MemoryPlan& plan) {
    size_t bytes = 0;
    for (const auto& [name, part] : plan) bytes += part;
    return bytes;
}

template class Parameters<float>;
template class Parameters<bfloat16>;
template class ParameterUpdate<float>;
template class ParameterUpdate<bfloat16>;
template class Model<float>;
template class Model<bfloat16>;
