#include "trainer/engine/norms_by_layer.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "system/error.h"

namespace {

// The layer and the kind of a tensor, by its name without the first component: in a block, the layer is
// the next two components. "model.layers.3.mlp.weight" gives {"layers.3", "mlp.weight"}; "model.norm.weight"
// gives {"norm", "norm.weight"}. "head.weight", which has nothing to leave out, gives
// {"head", "head.weight"}.
std::pair<std::string, std::string> layer_and_kind(const Tensor& tensor, bool in_block) {
    std::string name = tensor.name.substr(tensor.name.find('.') + 1);
    if (name.find('.') == name.npos) name = tensor.name;
    const size_t first = name.find('.');
    if (!in_block) return {name.substr(0, first), name};
    const size_t second = name.find('.', first + 1);
    return {name.substr(0, second), name.substr(second + 1)};
}

// Turns sums of squares into norms.
void take_roots(nlohmann::ordered_json& map) {
    for (nlohmann::ordered_json& value : map) {
        const double norm = std::sqrt(value.get<double>());
        value = std::isfinite(norm) ? nlohmann::ordered_json(norm) : nlohmann::ordered_json(nullptr);
    }
}

}  // namespace

nlohmann::ordered_json norms_by_layer(const TensorTable& table, const SquaredNorms& norms) {
    const std::vector<Tensor>& tensors = table.tensors();
    if (norms.gradients.size() != tensors.size() || norms.weights.size() != tensors.size())
        throw Error("layer norms: not a norm for every tensor");
    nlohmann::ordered_json result = {{"grad", nlohmann::ordered_json::object()},
                                     {"weight", nlohmann::ordered_json::object()},
                                     {"grad_by_kind", nlohmann::ordered_json::object()},
                                     {"weight_by_kind", nlohmann::ordered_json::object()}};
    const auto add = [](nlohmann::ordered_json& map, const std::string& key, double squares) {
        map[key] = map.value(key, 0.0) + squares;
    };
    for (size_t i = 0; i < tensors.size(); i++) {
        const auto [layer, kind] = layer_and_kind(tensors[i], table.is_block(tensors[i].group));
        add(result["grad"], layer, norms.gradients[i]);
        add(result["weight"], layer, norms.weights[i]);
        add(result["grad_by_kind"], kind, norms.gradients[i]);
        add(result["weight_by_kind"], kind, norms.weights[i]);
    }
    for (nlohmann::ordered_json& map : result) take_roots(map);
    return result;
}
