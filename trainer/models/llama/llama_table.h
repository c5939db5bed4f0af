// llama_table.h: Llama's parameters: the rows of its table, and where to find each of them.
#pragma once
#include <vector>

#include "trainer/engine/model_config.h"
#include "trainer/engine/tensor_table.h"

struct LlamaParameters {
    // The rows of k and v are joined to those of q, and those of up to those of gate: one product computes
    // q, k and v, and one computes gate and up.
    struct Layer {
        Affine norm1, qkv, attproj, norm2, gate_up, down;
    };

    TensorId wte = 0, head = 0;  // equal if the head is tied to the embedding
    std::vector<Layer> layers;
    Affine norm{};
};

// The shape with its missing sizes: as many heads of keys and values as of queries, heads of C / NH channels,
// and an MLP of 8/3 C channels, rounded up to a multiple of 32, which has as many weights as GPT-2's of 4 C.
ModelConfig complete_llama(ModelConfig config);

// UsageError if a size is not positive, heads do not divide the channels or each other, a head is odd or
// longer than 128, the base of RoPE or the epsilon is out of range, the channels are no multiple of 4, or the
// MLP's width is odd and they are no multiple of 8.
void check_llama(const ModelConfig& config);

// Fills `table` with the rows of a model of a possible shape.
LlamaParameters add_llama(TensorTable& table, const ModelConfig& config);
