#include "trainer/model/norms_by_layer.h"

#include <cmath>
#include <string>

#include "system/error.h"

namespace {

// "transformer.h.3.attn.c_attn.weight" gives {"h.3", "attn.c_attn.weight"}; "transformer.wte.weight"
// gives {"wte", "wte.weight"}.
std::pair<std::string, std::string> layer_and_kind(const Tensor& tensor) {
    const std::string name = tensor.name.substr(std::string("transformer.").size());
    if (tensor.layer < 0) return {name.substr(0, name.find('.')), name};
    const std::string layer = "h." + std::to_string(tensor.layer);
    return {layer, name.substr(layer.size() + 1)};
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
        const auto [layer, kind] = layer_and_kind(tensors[i]);
        add(result["grad"], layer, norms.gradients[i]);
        add(result["weight"], layer, norms.weights[i]);
        add(result["grad_by_kind"], kind, norms.gradients[i]);
        add(result["weight_by_kind"], kind, norms.weights[i]);
    }
    for (nlohmann::ordered_json& map : result) take_roots(map);
    return result;
}
