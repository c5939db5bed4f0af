// open_model finds the model behind every kind of path, and llm.c's files are read and written bit for bit
// or rejected by name.
#include <nlohmann/json.hpp>

#include "kernels/simt/bfloat16.h"
#include "model_weights.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/hugging_face.h"
#include "trainer/models/llmc_model.h"
#include "trainer/models/model_file.h"

namespace fs = std::filesystem;

namespace {

// A model file of llm.c's, written from its specification: the header, and as every element its own index
// in the file, times 2^-20.
std::string llmc_bytes(int32_t version, const std::vector<int32_t>& sizes, size_t elements) {
    std::vector<int32_t> header(256);
    header[0] = 20240326;
    header[1] = version;
    std::copy(sizes.begin(), sizes.end(), header.begin() + 2);
    std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
    for (size_t i = 0; i < elements; i++) {
        const float value = static_cast<float>(i) * 0x1p-20f;
        const bfloat16 narrow(value);
        if (version == 5) bytes.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
        else bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return bytes;
}

// context 5, V 7, L 2, NH 2, C 4, Vp 9
const std::vector<int32_t> tiny_sizes = {5, 7, 2, 2, 4, 9};
constexpr size_t tiny_elements =
    9 * 4 + 5 * 4 + 2 * (4 + 4 + 48 + 12 + 16 + 4 + 4 + 4 + 64 + 16 + 64 + 4) + 4 + 4;

// Blocks of rows begin and end before, at and behind the first row of padding.
void expect_the_same_by_rows(const ModelFile& model) {
    for (const Tensor& tensor : model.table().tensors()) {
        const std::vector<float> whole = model.values(tensor);
        const size_t columns = tensor.shape.back(), rows = tensor.elements / columns;
        for (const size_t at_once : {size_t{1}, size_t{3}, size_t{7}, rows - 1}) {
            for (size_t row = 0, count; at_once > 0 && row < rows; row += count) {
                count = std::min(at_once, rows - row);
                std::vector<float> part(count * columns, NAN);
                model.values(tensor, row * columns, part);
                ASSERT_TRUE(std::equal(part.begin(), part.end(),
                                       whole.begin() + static_cast<std::ptrdiff_t>(row * columns)))
                    << tensor.name << " from row " << row;
            }
        }
    }
}
TEST(ModelFile, ValuesByRowsAreThoseOfTheWhole) {
    const TemporaryFolder folder;
    for (const int32_t version : {3, 5})
        expect_the_same_by_rows(
            *open_model(folder.write("model.bin", llmc_bytes(version, tiny_sizes, tiny_elements))));
    const ModelConfig config{133, 9, 2, 3, 33};
    const TensorTable table = table_of(config);
    std::vector<float> masters(table.elements());
    for (const Tensor& tensor : table.tensors())
        for (size_t i = 0; i < tensor.unpadded_elements; i++)
            masters[tensor.offset + i] = static_cast<float>(tensor.offset + i);
    write_hugging_face_metadata(folder.path(), config, *make_tokenizer("byte"));
    write_hugging_face_model(folder / "model.safetensors", table, masters.data());
    const auto model = open_model(folder.path());
    expect_the_same_by_rows(*model);
    for (const Tensor& tensor : table.tensors())
        EXPECT_EQ(
            model->values(tensor),
            std::vector(masters.begin() + static_cast<std::ptrdiff_t>(tensor.offset),
                        masters.begin() + static_cast<std::ptrdiff_t>(tensor.offset + tensor.elements)));
}

TEST(LlmcModel, TensorsLieByKindAndThenByLayer) {
    const TemporaryFolder folder;
    for (const int32_t version : {3, 5}) {
        const auto model =
            open_model(folder.write("model.bin", llmc_bytes(version, tiny_sizes, tiny_elements)));
        EXPECT_EQ(model->config().context, 5);
        EXPECT_EQ(model->config().V, 7);
        EXPECT_EQ(model->config().L, 2);
        EXPECT_EQ(model->config().NH, 2);
        EXPECT_EQ(model->config().C, 4);
        EXPECT_EQ(tokenizer_name(*model), "byte");
        const auto expect = [&](const std::string& name, size_t first, size_t count) {
            const Tensor& tensor = model->table().named("transformer." + name);
            const std::vector<float> values = model->values(tensor);
            ASSERT_EQ(values.size(), tensor.elements);
            for (size_t i = 0; i < values.size(); i++) {
                const float value = i < count ? static_cast<float>(first + i) * 0x1p-20f : 0;
                ASSERT_EQ(values[i], version == 5 ? static_cast<float>(bfloat16(value)) : value)
                    << tensor.name << " " << i;
            }
        };
        size_t at = 0;
        const auto next = [&](const std::string& name, size_t elements) {
            expect(name, at, elements);
            at += elements;
        };
        const auto in_layers = [&](const std::string& name, size_t elements) {
            for (const char* layer : {"h.0.", "h.1."}) next(layer + name, elements);
        };
        expect("wte.weight", 0, 7 * 4);  // its two padded rows are undefined
        at = 9 * 4;
        next("wpe.weight", 20);
        in_layers("ln_1.weight", 4);
        in_layers("ln_1.bias", 4);
        in_layers("attn.c_attn.weight", 48);
        in_layers("attn.c_attn.bias", 12);
        in_layers("attn.c_proj.weight", 16);
        in_layers("attn.c_proj.bias", 4);
        in_layers("ln_2.weight", 4);
        in_layers("ln_2.bias", 4);
        in_layers("mlp.c_fc.weight", 64);
        in_layers("mlp.c_fc.bias", 16);
        in_layers("mlp.c_proj.weight", 64);
        in_layers("mlp.c_proj.bias", 4);
        next("ln_f.weight", 4);
        next("ln_f.bias", 4);
        EXPECT_EQ(at, tiny_elements);
    }
}

TEST(LlmcModel, WhatIsWrittenIsReadBackBitForBit) {
    const TemporaryFolder folder;
    write_folder(folder / "model");
    const auto original = open_model(folder / "model");
    const TensorTable table = table_of(small_config);
    std::vector<float> masters = masters_of(table);
    write_llmc_model(folder / "fp32.bin", *original, LlmcVersion::fp32);
    expect_same_weights(*open_model(folder / "fp32.bin"), table, masters);
    write_llmc_model(folder / "bf16.bin", *original, LlmcVersion::bf16);
    for (float& value : masters) value = static_cast<float>(bfloat16(value));
    expect_same_weights(*open_model(folder / "bf16.bin"), table, masters);
    for (const auto& [name, version] :
         {std::pair{"fp32.bin", LlmcVersion::fp32}, {"bf16.bin", LlmcVersion::bf16}}) {
        write_llmc_model(folder / "again.bin", *open_model(folder / name), version);
        EXPECT_EQ(read_file(folder / "again.bin"), read_file(folder / name));
    }
}

TEST(LlmcModel, HostileHeadersAreRefusedByName) {
    const TemporaryFolder folder;
    const std::string path = folder / "model.bin", whole = llmc_bytes(3, tiny_sizes, tiny_elements);
    const auto refusal = [&](const std::string& bytes) {
        folder.write("model.bin", bytes);
        const std::string message = message_of<UsageError>([&] { open_model(path); });
        EXPECT_TRUE(message.starts_with(path + ": ")) << message;
        return message;
    };
    const auto with = [&](size_t field, int32_t value) {
        std::string bytes = whole;
        std::memcpy(bytes.data() + field * 4, &value, 4);
        return bytes;
    };
    struct Case {
        size_t field;
        int32_t value;
        std::string expected;
    };
    const Case cases[] = {
        {0, 20240520, "is not a model of llm.c: magic number 20240520, expected 20240326"},
        {1, 4, "model of version 4; expected 3 (fp32) or 5 (bf16)"},
        {1, 5, "has 3232 bytes; expected 2128"},
        {2, 0, "its header says 0 tokens of context; expected 1 to 1048576"},
        {2, 6,
         "has 3232 bytes; expected 3248 for the 2 layers, 4 channels, context 6 and padded vocabulary 9"},
        {3, -7, "its header says -7 tokens of vocabulary; expected 1 to 4194304"},
        {3, 10, "its header says a vocabulary padded to 9; expected 10 to 4194304"},
        {3, 4194305, "4194305 tokens of vocabulary"},
        {4, std::numeric_limits<int32_t>::max(), "2147483647 layers; expected 1 to 4096"},
        {4, 4096, "has 3232 bytes; expected"},
        {5, 3, "4 channels do not divide into 3 heads"},
        {5, std::numeric_limits<int32_t>::min(), "-2147483648 heads"},
        {6, 1 << 17, "65536 a head; expected at most 128"},
        {6, 1 << 30, "1073741824 channels; expected 1 to 131072"},
        {7, 6, "a vocabulary padded to 6; expected 7 to"},
        {7, 1 << 23, "a vocabulary padded to 8388608"},
    };
    for (const Case& c : cases) {
        const std::string message = refusal(with(c.field, c.value));
        EXPECT_TRUE(says(message, c.expected)) << c.field << " " << c.value;
    }
    EXPECT_TRUE(says(refusal(whole + "x"), "has 3233 bytes; expected 3232"));
    for (const size_t size : {size_t{0}, size_t{1023}, size_t{1024}, whole.size() - 1})
        refusal(whole.substr(0, size));
}

// ----------------------------------------------------------------------------------------------------

TEST(OpenModel, ARunsFolderIsItsNewestWholeCheckpoint) {
    const TemporaryFolder folder;
    const std::string run = folder / "run";
    const auto checkpoint = [&](int step, const ModelConfig& config) {
        write_folder(checkpoint_folder(run, step), config);
        TrainingState state;
        state.step = state.optimizer_step = step;
        state.batch_size = 1;
        write_state(checkpoint_folder(run, step), state);
    };
    fs::create_directories(run);
    folder.write("run/metrics.jsonl", "");
    EXPECT_EQ(message_of<UsageError>([&] { open_model(run); }),
              run + ": is the folder of a run that has no checkpoint yet");
    checkpoint(5, {10, 4, 1, 1, 4});
    checkpoint(10, {11, 4, 1, 1, 4});
    EXPECT_EQ(open_model(run)->config().V, 11);
    EXPECT_EQ(open_model(run)->path(), checkpoint_folder(run, 10));
    EXPECT_EQ(open_model(checkpoint_folder(run, 5))->config().V, 10);
    // One flipped bit of a weight invalidates that checkpoint.
    const std::string weights = checkpoint_folder(run, 10) + "/model.safetensors";
    std::string bytes = read_file(weights);
    bytes[bytes.size() - 9] ^= 1;
    std::ofstream(weights, std::ios::binary) << bytes;
    EXPECT_EQ(open_model(run)->config().V, 10);
    EXPECT_TRUE(
        says(message_of<UsageError>([&] { open_model(checkpoint_folder(run, 10)); }), "model.safetensors"));
}

TEST(OpenModel, ACheckpointWithoutItsOptimizerWasNoModel) {
    const TemporaryFolder folder;
    const std::string run = folder / "run", checkpoint = checkpoint_folder(run, 5),
                      optimizer = checkpoint + "/optimizer_0000.safetensors";
    write_folder(checkpoint, {10, 4, 1, 1, 4});
    std::ofstream(optimizer) << "the optimizer's state";
    TrainingState state;
    state.step = state.optimizer_step = 5;
    state.batch_size = 1;
    state.val_loss = 2;
    write_state(checkpoint, state);
    fs::remove(optimizer);
    EXPECT_EQ(open_model(checkpoint)->config().V, 10);
    for (const WhichCheckpoint which : {WhichCheckpoint::newest, WhichCheckpoint::best})
        EXPECT_EQ(open_model(run, which)->path(), checkpoint);
    const std::string missing = message_of<UsageError>([&] { whole_checkpoint(checkpoint); });
    EXPECT_TRUE(says(missing, "optimizer_0000"));  // nothing to resume from
    std::ofstream(checkpoint + "/config.json", std::ios::app) << " ";
    EXPECT_TRUE(says(message_of<UsageError>([&] { open_model(checkpoint); }), "config.json: has"));
    EXPECT_TRUE(
        says(message_of<UsageError>([&] { open_model(run, WhichCheckpoint::best); }), "config.json: has"));
}

}  // namespace
