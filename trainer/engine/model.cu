#include "trainer/engine/model.cuh"
#include "trainer/engine/model_evaluation.cuh"
#include "trainer/engine/model_memory.cuh"
#include "trainer/engine/optimizer_buffers.cuh"
#include "trainer/engine/parameter_update.cuh"
#include "trainer/engine/parameters.cuh"

template class Parameters<float>;
template class Parameters<bfloat16>;
template class ParameterUpdate<float>;
template class ParameterUpdate<bfloat16>;
template class Model<float>;
template class Model<bfloat16>;
