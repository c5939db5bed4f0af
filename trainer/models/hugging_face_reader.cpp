#include "trainer/models/hugging_face_reader.h"

#include <set>

#include "system/json_text.h"
#include "trainer/formats/config_fields.h"
#include "trainer/formats/weight_files.h"
#include "trainer/models/families.h"
#include "trainer/models/hugging_face.h"

namespace {

// The shape by config.json, of the family that model_type names. GPT-2's oldest folders lack it.
ModelConfig read_config(const std::string& path, ConfigFields& fields) {
    std::vector<nlohmann::json> names;
    std::string titles, types;
    for (const FamilyDescription& family : families()) {
        names.emplace_back(family.name);
        titles += (titles.empty() ? "" : " or ") + std::string(family.title);
        types += (types.empty() ? "" : " or ") + shown(names.back());
    }
    fields.set_title(titles);
    fields.check("model_type", names);
    const bool is_named = fields.all().contains("model_type");
    for (const char* field : {"num_key_value_heads", "intermediate_size", "rms_norm_eps"})
        CHECK(is_named || !fields.all().contains(field),
              "{}: has {} and no model_type, which only a GPT-2 may lack; expected {}", path, field, types);
    const std::string name = fields.all().value("model_type", std::string(families().front().name));
    const FamilyDescription& family = family_of({.family = name});
    fields.set_title(family.title);
    const ModelConfig config = family.read_config(fields);
    fields.check("quantization_config", {nullptr});
    fields.check("auto_map", {nullptr, nlohmann::json::object()});  // the model brings its own code
    check_shape(path, config);
    return config;
}

std::string shape_text(const std::vector<size_t>& shape) {
    std::string text;
    for (const size_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
    return "(" + text + ")";
}

class HuggingFaceModel : public ModelFile {
public:
    explicit HuggingFaceModel(const std::string& folder)
        : HuggingFaceModel(folder, ConfigFields(folder + "/config.json")) {}

    HuggingFaceModel(const std::string& folder, ConfigFields fields)
        : ModelFile(folder, read_config(folder + "/config.json", fields)),
          family_(family_of(config())),
          is_tied_(fields.flag_or("tie_word_embeddings", true)),
          weights_(folder, family_.prefix) {
        CHECK(config().tied || weights_.find(head),
              "{}/config.json: without \"tie_word_embeddings\": true the head has weights of its own, but "
              "there is no lm_head.weight; expected the head's weights, or true",
              path());
        // The head may be the only one of the two that is stored.
        if (config().tied && is_tied_) weights_.rename(head, weights_.without_prefixes(family_.tied_head));
        std::set<std::string> known;
        for (const Tensor& tensor : table().tensors()) {
            check_tensor(stored(tensor), tensor);
            known.insert(weights_.without_prefixes(tensor.name));
        }
        if (config().tied) known.insert(head);
        for (const auto& [name, stored] : weights_.tensors())
            CHECK(known.contains(name) || family_.is_ignored(name, config()),
                  "{}: tensor {} does not belong to a {} of {} layers", stored.file->path(),
                  shown(stored.name), family_.title, config().L);
        if (config().tied) check_tied();
    }

    void read(const Tensor& tensor, size_t first, std::span<float> to) const override {
        const WeightFiles::Stored& from = stored(tensor);
        if (!tensor.transposed) return from.file->floats(from.name, to, first);
        // Parts of the file's rows become parts of our columns, a tile of them at a time.
        const size_t columns = tensor.shape[1], rows = to.size() / columns;
        std::vector<float> of_file(transpose_tile * rows);
        for (size_t column = 0; column < columns; column += transpose_tile) {
            const size_t width = std::min(transpose_tile, columns - column);
            for (size_t i = 0; i < width; i++)
                from.file->floats(from.name, std::span(of_file).subspan(i * rows, rows),
                                  (column + i) * tensor.shape[0] + first / columns);
            transpose(to.data() + column, columns, of_file.data(), width, rows);
        }
    }

private:
    static constexpr char head[] = "lm_head.weight";

    const WeightFiles::Stored& stored(const Tensor& tensor) const {
        const WeightFiles::Stored* found = weights_.find(tensor.name);
        CHECK(found, "{}: has no tensor {}, which a {} of {} layers has", path(), tensor.name, family_.title,
              config().L);
        return *found;
    }

    void check_tensor(const WeightFiles::Stored& stored, const Tensor& tensor) const {
        const std::vector<size_t> expected = tensor.shape_in_file();
        const SafetensorsFile::Tensor& found = stored.tensor();
        CHECK(found.shape == expected, "{}: tensor {} has the shape {}; expected {} by config.json",
              stored.file->path(), shown(stored.name), shape_text(found.shape), shape_text(expected));
        const bool is_number =
            found.dtype == "F32" || found.dtype == "F16" || found.dtype == "BF16" || found.dtype == "F64";
        CHECK(is_number, "{}: tensor {} is {}; expected F32, F16, BF16 or F64", stored.file->path(),
              shown(stored.name), found.dtype);
    }

    // A separate head would be another model. If config.json says that there is one but the file has none
    // (transformers saves the trunk of such a model so), the head is unknown.
    void check_tied() const {
        if (const WeightFiles::Stored* own = weights_.find(head)) return check_head(*own);
        CHECK(is_tied_,
              "{}/config.json: tie_word_embeddings is false, but there is no lm_head.weight; expected the "
              "head's weights, or true",
              path());
    }

    void check_head(const WeightFiles::Stored& own) const {
        const Tensor& tied = table().named(family_.tied_head);
        check_tensor(own, tied);
        const WeightFiles::Stored& embedding = stored(tied);
        const bool equal = own.tensor().dtype == embedding.tensor().dtype
                               ? own.file->bytes(own.name) == embedding.file->bytes(embedding.name)
                               : own.file->floats(own.name) == embedding.file->floats(embedding.name);
        CHECK(equal, "{}: tensor {} differs from {}; expected a {} whose head is its token embedding",
              own.file->path(), shown(own.name), shown(embedding.name), family_.title);
    }

    const FamilyDescription& family_;
    const bool is_tied_;  // as config.json says
    WeightFiles weights_;
};

}  // namespace

std::unique_ptr<ModelFile> open_hugging_face_model(const std::string& folder) {
    return std::make_unique<HuggingFaceModel>(folder);
}
