// gpt2_table.h: GPT-2's parameters: the rows of its table, and where to find each of them.
#pragma once
#include <vector>

#include "trainer/engine/model_config.h"
#include "trainer/engine/tensor_table.h"

struct GPT2Parameters {
    struct Layer {
        Affine ln1, qkv, attproj, ln2, fc, fcproj;
    };

    TensorId wte = 0, wpe = 0;  // wte is also the head
    std::vector<Layer> layers;
    Affine lnf{};
};

// UsageError if a size is not positive, C is not a multiple of NH, or a head is longer than 128.
void check_gpt2(const ModelConfig& config);

// Fills `table` with the rows of a model of a possible shape.
GPT2Parameters add_gpt2(TensorTable& table, const ModelConfig& config);
