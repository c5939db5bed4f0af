// llama_table.h: Llama's parameters: the rows of its table, and where to find each of them.
#pragma once
#include <vector>

#include "trainer/engine/model_config.h"
#include "trainer/engine/tensor_table.h"

// The families of this block differ in these traits.
struct LlamaTraits {
    bool norm_weights = true;                    // RMSNorm has weights
    bool embedding_norm = false;                 // and follows the embedding, too
    bool head_norm = false;                      // heads of q and k are normalised
    bool head_weights = false;                   // and multiplied by weights, before they are turned
    float rope_sign = 1;                         // positions turn by this times the angle
    bool gated = true;                           // SwiGLU; else max(x, 0)^2
    float logit_cap = 0;                         // logits become cap tanh(logit / cap); 0: they stay
    double rope_theta = 10000, norm_eps = 1e-5;  // unless the config has others
    bool tied = true;                            // the head may be the embedding
};
const LlamaTraits& llama_traits(const ModelConfig& config);

struct LlamaParameters {
    // The rows of k and v are joined to those of q, and those of up to those of gate: one product computes
    // q, k and v, and one computes gate and up. Without a gate there is only up.
    struct Layer {
        Affine norm1, qkv, q_norm, k_norm, attproj, norm2, up, down;
    };

    TensorId wte = 0, head = 0;  // equal if the head is tied to the embedding
    std::vector<Layer> layers;
    Affine norm{};
};

// The shape with its missing sizes: as many heads of keys and values as of queries, heads of C / NH channels,
// an MLP of 4 C channels, or with a gate, for as many weights, of 8/3 C, rounded up to a multiple of 32.
ModelConfig complete_llama(ModelConfig config);

// UsageError if a size is one that the block cannot compute, or that transformers' class of it refuses.
void check_llama(const ModelConfig& config);

// Fills `table` with the rows of a model of a possible shape.
LlamaParameters add_llama(TensorTable& table, const ModelConfig& config);
