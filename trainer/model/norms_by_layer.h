// norms_by_layer.h: how large gradients and weights are, layer by layer and kind by kind.
#pragma once
#include <nlohmann/json.hpp>
#include <vector>

#include "trainer/model/tensor_table.h"

// Sums of squares of every tensor, in the table's order.
struct SquaredNorms {
    std::vector<float> gradients, weights;
};

// {"grad": {"wte":.., "wpe":.., "h.0":.., .., "ln_f":..}, "weight": {..}, "grad_by_kind": {"wte.weight":..,
// "wpe.weight":.., "attn.c_attn.weight":.., ..}, "weight_by_kind": {..}}: Euclidean norms, a kind over all
// layers. The squares of one map add up to the square of the norm over all parameters. What is not finite is
// null.
nlohmann::ordered_json norms_by_layer(const TensorTable& table, const SquaredNorms& norms);
