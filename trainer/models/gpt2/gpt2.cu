#include "trainer/models/gpt2/gpt2.cuh"

template class GPT2<float>;
template class GPT2<bfloat16>;
