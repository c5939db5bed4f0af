#include "trainer/models/llama/llama.cuh"

template class Llama<float>;
template class Llama<bfloat16>;
