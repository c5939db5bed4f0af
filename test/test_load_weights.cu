// A model saved by transformers gives the same results here as there (test/reference/hugging_face, written
// by dev/reference.py).
#include "model.cuh"
#include "temporary_folder.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/models/model_file.h"

namespace {

const std::string folders = relocated(PROJECT_ROOT "/test/reference/hugging_face/");

// Logits (T, V) of the tokens.
template <class T>
std::vector<float> logits_of(const ModelFile& file, const std::vector<int>& tokens) {
    const int length = static_cast<int>(tokens.size());
    Model<T> model(make_family<T>(file.config()), {.B = 1, .T = length, .total_batch = 1, .training = false});
    model.allocate();
    load_weights(model, file);
    model.evaluate(OwnedBatch(1, length, tokens, tokens));
    return evaluated_logits(model);
}

TEST(LoadWeights, AFolderOfTransformersGivesItsLogits) {
    const SafetensorsFile expected(folders + "expected.safetensors");
    const std::vector<int> x = expected.ints("x");
    for (const std::string name : {"sharded", "bare_bf16"}) {
        const auto file = open_model(folders + name);
        EXPECT_EQ(tokenizer_name(*file), "none");  // 131 rows do not say that they are bytes
        // fp32 sums of up to 32 products a matmul, three matmuls a block: a few roundings of 2^-24 each.
        EXPECT_LE(relative_error(logits_of<float>(*file, x), expected.floats(name)), 1e-6) << name;
    }
    // In bf16 each of about 20 consecutive operations rounds to 2^-9.
    EXPECT_LE(relative_error(logits_of<bfloat16>(*open_model(folders + "bare_bf16"), x),
                             expected.floats("bare_bf16")),
              0.03);
}

TEST(LoadWeights, AShorterContextTakesTheFirstPositionsAndAnotherShapeIsRefused) {
    const auto file = open_model(folders + "sharded");
    ModelConfig config = file->config();
    config.context = 9;
    Model<float> model(make_family<float>(config), {.B = 1, .T = 9, .total_batch = 1, .training = false});
    model.allocate();
    load_weights(model, *file);
    const std::vector<float> whole = file->values(file->table().named("transformer.wpe.weight")),
                             positions = model.parameter(model.table().named("transformer.wpe.weight"));
    EXPECT_EQ(positions, std::vector<float>(whole.begin(), whole.begin() + 9 * config.C));

    const auto refusal = [&](int ModelConfig::*field, int value) {
        ModelConfig other = file->config();
        other.*field = value;
        Model<float> model(make_family<float>(other), {.B = 1, .T = 4, .total_batch = 1, .training = false});
        return message_of<UsageError>([&] { load_weights(model, *file); });
    };
    EXPECT_EQ(refusal(&ModelConfig::context, 17),
              folders + "sharded: has a context of 16; expected at least 17");
    EXPECT_EQ(
        refusal(&ModelConfig::V, 40),
        folders +
            "sharded: has 2 layers, 2 heads, 8 channels and a vocabulary of 41; expected 2, 2, 8 and 40");
    EXPECT_TRUE(says(refusal(&ModelConfig::NH, 4), "expected 2, 4, 8 and 41"));
    EXPECT_TRUE(says(refusal(&ModelConfig::L, 1), "expected 1, 2, 8 and 41"));
}

}  // namespace
