#include "trainer/models/gpt2/gpt2.cuh"
#include "trainer/models/operations.cuh"
#include "trainer/models/operations_generation.cuh"

template class GPT2<float>;
template class GPT2<bfloat16>;
