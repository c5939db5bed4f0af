#include "trainer/models/hugging_face.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "system/atomic_file.h"
#include "system/json_text.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/families.h"
#include "trainer/tokenizer/tokenizer_files.h"

using nlohmann::json;

// Works in tiles that stay in cache, because a row of one matrix is a column of the other.
void transpose(float* out, size_t stride, const float* inp, size_t rows, size_t columns) {
    constexpr size_t tile = transpose_tile;
    for (size_t row = 0; row < rows; row += tile) {
        for (size_t column = 0; column < columns; column += tile) {
            const size_t row_end = std::min(rows, row + tile), column_end = std::min(columns, column + tile);
            for (size_t i = row; i < row_end; i++) {
                for (size_t j = column; j < column_end; j++) out[j * stride + i] = inp[i * columns + j];
            }
        }
    }
}

void write_hugging_face_model(const std::string& path, const TensorTable& table, const float* masters) {
    write_hugging_face_model(path, table, [&](const Tensor& t) { return masters + t.offset; });
}

void write_hugging_face_model(const std::string& path, const TensorTable& table,
                              const std::function<const float*(const Tensor&)>& values_of) {
    std::vector<NamedTensor> tensors;
    for (const Tensor& t : table.tensors()) tensors.push_back({t.name, "F32", t.shape_in_file(), nullptr});
    std::vector<float> transposed;
    const auto data_of = [&](size_t i) -> const void* {
        const Tensor& t = table.tensors()[i];
        const float* const values = values_of(t);
        if (!t.transposed) return values;
        transposed.resize(t.elements);
        transpose(transposed.data(), t.shape[0], values, t.shape[0], t.shape[1]);
        return transposed.data();
    };
    write_safetensors(path, tensors, {{"format", "pt"}}, data_of);
}

static void write_json(const std::string& path, const json& value) {
    write_atomically(path, value.dump(2) + "\n");
}

// One number, or a list of several. transformers assumes 50256 if a field is missing, so a model without an
// end of text gets null.
static json json_of(const std::vector<int>& ids) {
    return ids.empty() ? json() : ids.size() == 1 ? json(ids.front()) : json(ids);
}

// The text of generation_config.json: that of the model or tokenizer it comes from if it has something to
// keep, else the numbers of the special tokens. Numbers that the model does not have are replaced.
static std::string generation_config(const ModelConfig& config, const Tokenizer& tokenizer) {
    const ModelIds& model = tokenizer.model_ids();
    const bool kept = !model.generation_config.empty() &&
                      (!model.generation_settings.empty() || !tokenizer.files().empty());
    if (kept && first_known({model.generation}, config.V) == model.generation) return model.generation_config;
    json generation = kept ? parse_json(model.generation_config) : json::object();
    const SpecialIds ids = first_known({model.generation, model.config, tokenizer.own_ids()}, config.V);
    if (!ids.ends.empty()) {
        generation["bos_token_id"] = ids.begin.value_or(ids.ends.front());
        generation["eos_token_id"] = json_of(ids.ends);
        generation["pad_token_id"] = ids.pad.value_or(ids.ends.front());
    }
    return generation.dump(2) + "\n";
}

void write_hugging_face_metadata(const std::string& folder, const ModelConfig& config,
                                 const Tokenizer& tokenizer) {
    const ModelIds& said = tokenizer.model_ids();
    const SpecialIds ids = first_known({said.config, said.generation, tokenizer.own_ids()}, config.V);
    const json begin = ids.begin ? json(*ids.begin) : ids.ends.empty() ? json() : json(ids.ends.front());
    json model = family_of(config).write_config(config);
    model["bos_token_id"] = begin;
    model["eos_token_id"] = json_of(ids.ends);
    if (said.config.pad && *said.config.pad < config.V) model["pad_token_id"] = *said.config.pad;
    write_json(folder + "/config.json", model);
    write_atomically(folder + "/generation_config.json", generation_config(config, tokenizer));
    for (const auto& [name, text] : tokenizer_files(tokenizer, config.context)) {
        std::filesystem::create_directories(std::filesystem::path(folder + "/" + name).parent_path());
        write_atomically(folder + "/" + name, text);
    }
}
