#include "trainer/formats/hugging_face_reader.h"

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "system/file_access.h"
#include "system/json_text.h"
#include "trainer/formats/hub_cache.h"
#include "trainer/formats/hugging_face.h"
#include "trainer/formats/safetensors.h"

using nlohmann::json;

namespace {

constexpr char prefix[] = "transformer.";
// Prefixes that torch.compile and DistributedDataParallel put before a saved model's names.
constexpr const char* prefixes[] = {prefix, "_orig_mod.", "module."};

std::string without_prefixes(std::string name) {
    for (bool found = true; found;) {
        found = false;
        for (const char* one : prefixes)
            if (name.starts_with(one)) name.erase(0, std::strlen(one)), found = true;
    }
    return name;
}

// ----------------------------------------------------------------------------------------------------
// config.json: https://huggingface.co/docs/transformers/model_doc/gpt2#transformers.GPT2Config

// alias: the field's name in transformers' other models, which its GPT2Config accepts too (attribute_map).
int size_field(const json& config, const std::string& path, const char* name, const char* alias, int most) {
    auto field = config.find(name);
    if (const auto other = config.find(alias); other != config.end()) {
        CHECK(field == config.end() || *field == *other,
              "{}: {} is {}, but {} is {}; expected the same number, or one of them", path, name,
              shown(*field), alias, shown(*other));
        field = other;
        name = alias;
    }
    CHECK(field != config.end(), "{}: has no {}; expected the config.json of a GPT-2", path, name);
    CHECK(field->is_number_unsigned() && field->get<uint64_t>() >= 1 &&
              field->get<uint64_t>() <= static_cast<uint64_t>(most),
          "{}: {} is {}; expected a whole number from 1 to {}", path, name, shown(*field), most);
    return field->get<int>();
}

// UsageError if a field that changes what the model computes has a value other than the accepted ones. A
// missing field is accepted, because its default is among them.
void check_field(const json& config, const std::string& path, const char* name,
                 const std::vector<json>& accepted) {
    const auto field = config.find(name);
    if (field == config.end()) return;
    std::string expected;
    for (const json& value : accepted) {
        if (*field == value) return;
        expected += (expected.empty() ? "" : " or ") + shown(value);
    }
    throw UsageError(fmt::format("{}: {} is {}, which is not the GPT-2 of this program; expected {}", path,
                                 name, shown(*field), expected));
}

GPT2Config read_config(const std::string& path) {
    const json config = read_json_object(path);
    check_field(config, path, "model_type", {"gpt2"});
    const GPT2Config shape{size_field(config, path, "vocab_size", "vocab_size", 65536),
                           size_field(config, path, "n_positions", "max_position_embeddings", 1 << 20),
                           size_field(config, path, "n_layer", "num_hidden_layers", 4096),
                           size_field(config, path, "n_head", "num_attention_heads", 4096),
                           size_field(config, path, "n_embd", "hidden_size", 1 << 17)};
    check_field(config, path, "n_inner", {nullptr, 4 * shape.C});
    // names of one formula, the tanh approximation
    check_field(config, path, "activation_function",
                {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"});
    check_field(config, path, "scale_attn_weights", {true});
    check_field(config, path, "scale_attn_by_inverse_layer_idx", {false});
    check_field(config, path, "add_cross_attention", {false});
    check_field(config, path, "pruned_heads", {nullptr, json::object()});
    check_field(config, path, "quantization_config", {nullptr});
    check_field(config, path, "auto_map", {nullptr, json::object()});  // the model brings its own code
    check_field(config, path, "tie_word_embeddings", {true, false});   // check_tied compares the weights
    if (const auto epsilon = config.find("layer_norm_epsilon"); epsilon != config.end()) {
        CHECK(epsilon->is_number() && std::abs(epsilon->get<double>() - 1e-5) < 1e-9,
              "{}: layer_norm_epsilon is {}, which is not the GPT-2 of this program; expected 1e-05", path,
              shown(*epsilon));
    }
    try {
        shape.check();
    } catch (const UsageError& error) { throw UsageError(fmt::format("{}: {}", path, error.what())); }
    return shape;
}

// ----------------------------------------------------------------------------------------------------
// model.safetensors, whole or in shards

// All tensors of the folder's weight files.
class Weights {
public:
    explicit Weights(const std::string& folder) {
        const std::string single = folder + "/model.safetensors", index = single + ".index.json";
        if (is_there(single)) open(single);
        else if (is_there(index)) open_shards(folder, index);
        else
            throw UsageError(is_there(folder + "/pytorch_model.bin")
                                 ? pickle_message(folder, folder)
                                 : folder + ": has no model.safetensors and no model.safetensors.index.json");
    }

    struct Place {
        const SafetensorsFile* file;
        std::string name;  // its name in the file
        const SafetensorsFile::Tensor& tensor() const { return file->at(name); }
    };
    // The tensors by their names without prefixes.
    const std::map<std::string, Place>& places() const { return places_; }
    // A head that is the token embedding may be the only one of the two that is stored.
    void take_head_for_embedding() {
        if (auto head = places_.extract("lm_head.weight"); !head.empty() && !places_.contains("wte.weight")) {
            head.key() = "wte.weight";
            places_.insert(std::move(head));
        }
    }

private:
    const SafetensorsFile& open(const std::string& path) {
        const SafetensorsFile& file = *files_.emplace_back(std::make_unique<SafetensorsFile>(path));
        for (const auto& [name, tensor] : file.tensors()) {
            const auto [place, is_new] = places_.emplace(without_prefixes(name), Place{&file, name});
            CHECK(is_new, "{}: tensor {} is present twice: also as {} in {}", path, shown(name),
                  shown(place->second.name), place->second.file->path());
        }
        return file;
    }

    void open_shards(const std::string& folder, const std::string& index) {
        const json root = read_json_object(index);
        const auto map = root.find("weight_map");
        CHECK(map != root.end() && map->is_object() && !map->empty(),
              "{}: has no weight_map; expected {{tensor: file}}", index);
        std::map<std::string, std::set<std::string>> names;  // names of each file's tensors
        for (const auto& [name, file] : map->items()) {
            CHECK(file.is_string(), "{}: the file of tensor {} is {}; expected a name", index, shown(name),
                  shown(file));
            const std::string text = file.get<std::string>();
            // A file in another folder does not belong to the model.
            CHECK(
                text.ends_with(".safetensors") && text.find('/') == text.npos && text.find('\0') == text.npos,
                "{}: the file of tensor {} is {}; expected a .safetensors file beside the index", index,
                shown(name), shown(file));
            names[text].insert(name);
        }
        for (const auto& [file_name, expected] : names) {
            const SafetensorsFile& file = open(folder + "/" + file_name);
            for (const std::string& name : expected)
                CHECK(file.contains(name), "{}: has no tensor {}, which {} lists for it", file.path(),
                      shown(name), index);
            for (const auto& [name, tensor] : file.tensors())
                CHECK(expected.contains(name), "{}: tensor {} is not in {}", file.path(), shown(name), index);
        }
    }

    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, Place> places_;
};

std::string shape_text(const std::vector<size_t>& shape) {
    std::string text;
    for (const size_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
    return "(" + text + ")";
}

// True for "h.3.attn.bias" and "h.3.attn.masked_bias", constants that old versions of transformers saved.
bool is_causal_mask(const std::string& name, int layers) {
    for (int l = 0; l < layers; l++) {
        const std::string attention = fmt::format("h.{}.attn.", l);
        if (name == attention + "bias" || name == attention + "masked_bias") return true;
    }
    return false;
}

class HuggingFaceModel : public ModelFile {
public:
    explicit HuggingFaceModel(const std::string& folder)
        : ModelFile(folder, read_config(folder + "/config.json")), weights_(folder) {
        if (!weights_.places().contains("wte.weight") && is_tied()) weights_.take_head_for_embedding();
        std::set<std::string> known;
        for (const Tensor& tensor : table().tensors()) {
            check_tensor(place(tensor), tensor);
            known.insert(bare_name(tensor));
        }
        for (const auto& [name, place] : weights_.places()) {
            if (known.contains(name)) continue;
            if (name != "lm_head.weight")
                CHECK(is_causal_mask(name, config().L),
                      "{}: tensor {} does not belong to a GPT-2 of {} layers", place.file->path(),
                      shown(place.name), config().L);
        }
        check_tied();
    }

    std::vector<float> read(const Tensor& tensor) const override {
        const Weights::Place& from = place(tensor);
        std::vector<float> values = from.file->floats(from.name);
        if (is_transposed(tensor.kind)) {
            std::vector<float> transposed(values.size());
            transpose(transposed.data(), values.data(), tensor.shape[1], tensor.shape[0]);
            return transposed;
        }
        values.resize(tensor.elements);
        return values;
    }

private:
    static std::string bare_name(const Tensor& tensor) { return tensor.name.substr(std::strlen(prefix)); }

    const Weights::Place& place(const Tensor& tensor) const {
        const auto found = weights_.places().find(bare_name(tensor));
        CHECK(found != weights_.places().end(), "{}: has no tensor {}, which a GPT-2 of {} layers has",
              path(), tensor.name, config().L);
        return found->second;
    }

    void check_tensor(const Weights::Place& place, const Tensor& tensor) const {
        std::vector<size_t> expected = tensor.shape;
        if (is_transposed(tensor.kind)) std::swap(expected[0], expected[1]);
        if (tensor.kind == Kind::wte) expected[0] = static_cast<size_t>(config().V);
        const SafetensorsFile::Tensor& found = place.tensor();
        CHECK(found.shape == expected, "{}: tensor {} has the shape {}; expected {} by config.json",
              place.file->path(), shown(place.name), shape_text(found.shape), shape_text(expected));
        const bool is_number =
            found.dtype == "F32" || found.dtype == "F16" || found.dtype == "BF16" || found.dtype == "F64";
        CHECK(is_number, "{}: tensor {} is {}; expected F32, F16, BF16 or F64", place.file->path(),
              shown(place.name), found.dtype);
    }

    // A separate head would be another model. If config.json says that there is one but the file has none
    // (transformers saves the trunk of such a model so), the head is unknown.
    void check_tied() const {
        if (const auto head = weights_.places().find("lm_head.weight"); head != weights_.places().end())
            return check_head(head->second);
        CHECK(is_tied(),
              "{}/config.json: tie_word_embeddings is false, but there is no lm_head.weight; expected the "
              "head's weights, or true",
              path());
    }

    bool is_tied() const {
        return read_json_object(path() + "/config.json").value("tie_word_embeddings", true);
    }

    void check_head(const Weights::Place& head) const {
        const Tensor& wte = table().at(Kind::wte);
        check_tensor(head, wte);
        const Weights::Place& embedding = place(wte);
        const bool equal = head.tensor().dtype == embedding.tensor().dtype
                               ? head.file->bytes(head.name) == embedding.file->bytes(embedding.name)
                               : head.file->floats(head.name) == embedding.file->floats(embedding.name);
        CHECK(equal, "{}: tensor {} differs from {}; expected a GPT-2, whose head is its token embedding",
              head.file->path(), shown(head.name), shown(embedding.name));
    }

    Weights weights_;
};

}  // namespace

std::unique_ptr<ModelFile> open_hugging_face_model(const std::string& folder) {
    return std::make_unique<HuggingFaceModel>(folder);
}
