#include "trainer/models/operations.cuh"
#include "trainer/models/operations_generation.cuh"

template class Operations<float>;
template class Operations<bfloat16>;
