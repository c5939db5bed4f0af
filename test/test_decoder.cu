// Decoder: a token at a time with a cache must give what the whole forward pass gives.
#include "decoder.h"
#include "model.cuh"

namespace {

struct Shape {
    GPT2Config config;
    int samples, prompt, tokens;
};
// One sample; odd channels and head sizes; more samples than are summed at once; a context past the attention's chunk.
const std::vector<Shape> shapes = {
    {{131, 32, 2, 3, 48}, 1, 1, 32}, {{257, 40, 2, 3, 99}, 3, 7, 20}, {{64, 20, 1, 2, 192}, 5, 20, 20}, {{70, 300, 1, 1, 32}, 2, 250, 266}};

template <class T>
std::unique_ptr<GPT2<T>> random_model(const GPT2Config& config) {
    auto model = std::make_unique<GPT2<T>>(config, GPT2Options{.B = 1, .T = config.context, .total_batch = 1, .training = false, .seed = 3});
    model->allocate();
    unsigned seed = 1;
    for (const Tensor& tensor : model->table().tensors()) {  // larger than at the start of training: every part of the model has a say
        const bool scale = tensor.init == Init::ones;
        model->set_parameter(tensor, random_values<T>(tensor.unpadded_elements, seed++, scale ? 0.2f : 0.1f, scale ? 1.0f : 0.0f));
    }
    return model;
}

std::vector<int> random_tokens(int count, int V, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<int> tokens(static_cast<size_t>(count));
    for (int& token : tokens) token = static_cast<int>(generator() % static_cast<unsigned>(V));
    return tokens;
}

template <class T>
void test_against_forward(bool int8) {
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::Message() << "V = " << shape.config.V << ", C = " << shape.config.C << ", samples = " << shape.samples);
        const auto model = random_model<T>(shape.config);
        Decoder<T> decoder(shape.config, {.samples = shape.samples, .max_tokens = shape.tokens, .int8 = int8});
        decoder.allocate();
        decoder.load([&](const Tensor& tensor) { return model->parameter(tensor); });
        const size_t V = static_cast<size_t>(shape.config.V), Vp = static_cast<size_t>(shape.config.Vp());
        const double tolerance = std::is_same_v<T, float> ? 1e-5 : 2e-2;
        const auto expect = [&](const float* logits, const std::vector<int>& tokens) {
            EXPECT_LE(relative_error(std::vector<float>(logits, logits + V), model->next_token_logits(tokens)), tolerance)
                << tokens.size() << " tokens";
        };

        const std::vector<int> prompt = random_tokens(shape.prompt, shape.config.V, 5);
        expect(decoder.prefill(prompt), prompt);
        std::vector<std::vector<int>> sequences(static_cast<size_t>(shape.samples), prompt);
        for (int t = shape.prompt; t < shape.tokens; t++) {
            const std::vector<int> next = random_tokens(shape.samples, shape.config.V, static_cast<unsigned>(t));
            const float* logits = decoder.step(next);
            for (size_t k = 0; k < sequences.size(); k++) {
                sequences[k].push_back(next[k]);
                expect(logits + k * Vp, sequences[k]);
            }
        }
        EXPECT_EQ(decoder.length(), shape.tokens);
        EXPECT_THROW(decoder.step(std::vector<int>(sequences.size(), 0)), UsageError);
    }
}

TEST(Decoder, GivesTheForwardPassesLogits) {
    test_against_forward<float>(false);
    test_against_forward<bfloat16>(false);
}

}  // namespace
