// Models in files: what is written is read back bit for bit, and every damage is refused in one line that names it.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "data_directory.h"
#include "hugging_face.h"
#include "model_file.h"
#include "safetensors.h"
#include "temporary_folder.h"
#include "tokenizer_files.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr GPT2Config small{131, 12, 2, 3, 24};

// A flat buffer whose every parameter has a value of its own, with rubbish between the tensors.
std::vector<float> masters_of(const TensorTable& table) {
    std::vector<float> masters(table.elements(), NAN);
    float next = 1;
    for (const Tensor& t : table.tensors()) {
        for (size_t i = 0; i < t.elements; i++) masters[t.offset + i] = i < t.unpadded_elements ? next++ * 0x1p-20f : 0;
    }
    return masters;
}

void expect_same_weights(const ModelFile& file, const TensorTable& table, const std::vector<float>& masters) {
    ASSERT_EQ(file.table().elements(), table.elements());
    for (const Tensor& t : table.tensors()) {
        const std::vector<float> values = file.values(t);
        ASSERT_EQ(values.size(), t.elements) << t.name;
        EXPECT_EQ(std::memcmp(values.data(), masters.data() + t.offset, t.elements * sizeof(float)), 0) << t.name;
    }
}

void write_folder(const std::string& folder, const GPT2Config& config = small) {
    fs::create_directories(folder);
    const TensorTable table(config);
    write_hugging_face_model(folder + "/model.safetensors", table, masters_of(table).data());
    write_hugging_face_metadata(folder, config, config.V <= 256 ? "byte" : "gpt2");
}

TEST(HuggingFace, AFolderIsReadBackBitForBit) {
    const TemporaryFolder folder;
    for (const GPT2Config& config : {small, GPT2Config{300, 5, 1, 1, 33}, GPT2Config{128, 1, 3, 2, 2}}) {
        write_folder(folder / "model", config);
        const TensorTable table(config);
        const auto file = open_model(folder / "model");
        EXPECT_EQ(file->config().V, config.V);
        EXPECT_EQ(file->config().context, config.context);
        EXPECT_EQ(file->config().L, config.L);
        EXPECT_EQ(file->config().NH, config.NH);
        EXPECT_EQ(file->config().C, config.C);
        EXPECT_EQ(file->path(), folder / "model");
        EXPECT_EQ(tokenizer_name(*file), config.V <= 256 ? "byte" : "gpt2");
        expect_same_weights(*file, table, masters_of(table));
    }
}

// Element (in i, out o) of a Conv1D weight is our (o, i); wte has as many rows as there are tokens.
TEST(HuggingFace, TheFileHasHuggingFacesNamesAndLayout) {
    const TemporaryFolder folder;
    write_folder(folder.path());
    const TensorTable table(small);
    const std::vector<float> masters = masters_of(table);
    const SafetensorsFile file(folder / "model.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.tensors().size(), 2 + 12 * 2 + 2u);
    EXPECT_EQ(file.at("transformer.wte.weight").shape, (std::vector<size_t>{131, 24}));
    EXPECT_EQ(file.at("transformer.h.1.attn.c_attn.weight").shape, (std::vector<size_t>{24, 72}));
    EXPECT_EQ(file.at("transformer.h.1.mlp.c_proj.weight").shape, (std::vector<size_t>{96, 24}));
    const std::vector<float> weight = file.floats("transformer.h.1.attn.c_attn.weight");
    const size_t offset = table.at(Kind::qkvw, 1).offset;
    for (size_t i = 0; i < 24; i++) {
        for (size_t o = 0; o < 72; o++) ASSERT_EQ(weight[i * 72 + o], masters[offset + o * 24 + i]);
    }
}

TEST(HuggingFace, ConfigSaysWhatTransformersWouldGuessWrong) {
    const TemporaryFolder folder;
    write_folder(folder / "byte");
    write_folder(folder / "gpt2", {50257, 4, 1, 1, 8});
    const auto config = [&](const std::string& name) { return json::parse(read_file(folder / name)); };
    EXPECT_TRUE(config("byte/config.json").at("eos_token_id").is_null());
    EXPECT_EQ(config("gpt2/config.json").at("eos_token_id"), 50256);
    EXPECT_EQ(config("gpt2/generation_config.json").at("eos_token_id"), 50256);
    EXPECT_EQ(config("gpt2/config.json").at("attn_pdrop"), 0.0);
}

}  // namespace
