// norms_by_layer.h: the norms of gradients and weights, by layer and by kind of parameter.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "trainer/engine/tensor_table.h"

// The sum of squares of each tensor, in the table's order.
struct SquaredNorms {
    std::vector<float> gradients, weights;
};

// Euclidean norms, by layer and, summed over the layers, by kind:
//   {"grad": {LAYER: norm, ..}, "weight": {..}, "grad_by_kind": {KIND: norm, ..}, "weight_by_kind": {..}}
// A tensor in a block is called NAME.LAYER.KIND, where LAYER has two components; elsewhere LAYER is the first
// component of KIND.
// The squares of each map sum to the squared norm over all parameters. A norm that is not finite is null.
// Error unless there is one norm for each tensor.
nlohmann::ordered_json norms_by_layer(const TensorTable& table, const SquaredNorms& norms);
