// Decoder: generating one token at a time with a cache must give the logits of plain_gpt2.h.
#include "model.cuh"
#include "trainer/engine/decoder.h"
#include "trainer/engine/quantized_weights.h"
#include "trainer/inference/generate.h"

namespace {

struct Shape {
    ModelConfig config;
    int samples, prompt, tokens;
};
// Shapes: one sample, to the context's end; odd channels and head sizes; a prompt that fills the context;
// many samples; past the attention's chunk.
const std::vector<Shape> shapes = {{{131, 24, 2, 3, 48}, 1, 1, 24},
                                   {{257, 40, 2, 3, 99}, 3, 7, 12},
                                   {{64, 20, 1, 2, 192}, 5, 20, 20},
                                   {{64, 24, 1, 2, 64}, 17, 3, 6},
                                   {{70, 300, 1, 1, 32}, 2, 253, 259}};

template <class T>
std::unique_ptr<Model<T>> random_model(const ModelConfig& config) {
    auto model = std::make_unique<Model<T>>(
        make_family<T>(config),
        ModelOptions{.B = 1, .T = config.context, .total_batch = 1, .training = false, .seed = 3});
    model->allocate();
    unsigned seed = 1;
    // larger than at the start of training, so that every part of the model influences the result
    for (const Tensor& tensor : model->table().tensors()) {
        const bool scale = tensor.init.value == 1;
        model->set_parameter(tensor, random_values<T>(tensor.unpadded_elements, seed++, scale ? 0.2f : 0.1f,
                                                      scale ? 1.0f : 0.0f));
    }
    return model;
}

// The error of logits, relative to their norm. fp32: rounding of sums. bf16: each of a dozen activations a
// layer is rounded to 2^-9 once.
template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 2e-2;

// The logits after the prompt and after every further token, of every sample.
template <class T>
void test_against_plain_loops(bool int8) {
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(testing::Message() << "V = " << shape.config.V << ", C = " << shape.config.C
                                        << ", samples = " << shape.samples);
        const auto model = random_model<T>(shape.config);
        Decoder<T> decoder(make_family<T>(shape.config),
                           {.samples = shape.samples, .max_tokens = shape.tokens, .int8 = int8});
        decoder.allocate();
        decoder.load([&](const Tensor& tensor) { return model->parameter(tensor); });
        if (int8) quantize_weights(*model);
        plain::GPT2<double> plain_model = plain_copy<double>(*model);
        const size_t V = static_cast<size_t>(shape.config.V), Vp = static_cast<size_t>(shape.config.Vp());
        const auto expect = [&](const float* logits, const std::vector<double>& all, int tokens) {
            const auto* expected = &all[(static_cast<size_t>(tokens) - 1) * V];
            EXPECT_LE(relative_error(std::vector(logits, logits + V), std::vector(expected, expected + V)),
                      tolerance<T>)
                << tokens << " tokens";
        };
        // Causal: a text's logits hold those of everything that it begins with.
        const auto logits_of = [&](const std::vector<int>& tokens) {
            plain_model.forward(tokens, tokens, tokens.size());
            return plain_model.activations["logits"];
        };

        expect(decoder.prefill({1, 2, 3}), logits_of({1, 2, 3}), 3);  // a prompt starts over
        const std::vector<int> prompt = random_tokens(shape.prompt, shape.config.V, 5);
        const std::vector<int> next =
            random_tokens(shape.samples * (shape.tokens - shape.prompt), shape.config.V, 6);
        std::vector<std::vector<double>> expected;
        for (int k = 0; k < shape.samples; k++) {
            std::vector<int> tokens = prompt;
            for (size_t i = static_cast<size_t>(k); i < next.size(); i += static_cast<size_t>(shape.samples))
                tokens.push_back(next[i]);
            expected.push_back(logits_of(tokens));
        }
        expect(decoder.prefill(prompt), expected[0], shape.prompt);
        for (int t = shape.prompt; t < shape.tokens; t++) {
            const auto at = next.begin() + static_cast<std::ptrdiff_t>(t - shape.prompt) * shape.samples;
            const float* logits = decoder.step({at, at + shape.samples});
            for (size_t k = 0; k < expected.size(); k++) expect(logits + k * Vp, expected[k], t + 1);
        }
        EXPECT_EQ(decoder.length(), shape.tokens);
        EXPECT_THROW(decoder.step(std::vector<int>(expected.size(), 0)), UsageError);
    }
}

TEST(Decoder, GivesThePlainLoopsLogits) {
    test_against_plain_loops<float>(false);
    test_against_plain_loops<bfloat16>(false);
}

TEST(Decoder, Int8GivesTheLogitsOfTheQuantizedWeights) {
    test_against_plain_loops<float>(true);
    test_against_plain_loops<bfloat16>(true);
}

// The same draws give the same text with and without the cache, also greedily. In fp32, because two bf16
// logits may be equal, or change places.
TEST(Decoder, GeneratesTheSameTokensWithAndWithoutCache) {
    const ModelConfig config{131, simt::checked ? 24 : 64, 2, 3, 48};
    const auto model = random_model<float>(config);
    Decoder<float> decoder(make_family<float>(config), {.samples = 1, .max_tokens = config.context});
    decoder.allocate();
    decoder.load([&](const Tensor& tensor) { return model->parameter(tensor); });
    WithoutCache<Model<float>> whole{*model};
    for (const double temperature : {0.0, 0.8, 1.5}) {
        const GenerateOptions options{.max_tokens = 100,
                                      .context = config.context,
                                      .vocabulary = config.V,
                                      .padded_vocabulary = config.Vp(),
                                      .ends = {},
                                      .sampling = {.temperature = temperature, .top_k = 50, .top_p = 0.95},
                                      .seed = 7};
        const auto tokens = [&](auto& with) {
            return generate(
                       with, {5, 6, 7}, options, [](int, int) {}, [] { return false; })
                .texts.at(0)
                .tokens;
        };
        const std::vector<int> expected = tokens(whole);
        EXPECT_EQ(expected.size(), static_cast<size_t>(config.context) - 3);  // to the end of the context
        EXPECT_EQ(tokens(decoder), expected) << "temperature " << temperature;
    }
}

TEST(Decoder, PlansWhatItAllocates) {
    const ModelConfig config{256, 64, 2, 2, 64};
    const Decoder<bfloat16> plain(make_family<bfloat16>(config), {.samples = 3, .max_tokens = 40}),
        int8(make_family<bfloat16>(config), {.samples = 3, .max_tokens = 40, .int8 = true});
    const auto bytes = [](const auto& decoder, const std::string& name) {
        for (const auto& [part, bytes] : decoder.memory_plan()) {
            if (part == name) return bytes;
        }
        return size_t{0};
    };
    // 40 tokens are two tiles of 32 in bf16
    const size_t matrices = 256 * 64 + 2 * 12 * 64 * 64, cached = 2 * 2 * 3 * 2 * 64 * 32;
    // behind every buffer; int8 has one more buffer, for the scales of each of the nine matrices
    constexpr size_t gap = simt::checked ? 256 : 0;
    EXPECT_EQ(bytes(plain, "keys and values"), cached * 2 + 4 * gap);
    EXPECT_NEAR(static_cast<double>(bytes(plain, "weights") - bytes(int8, "weights") + 9 * gap),
                static_cast<double>(matrices), 0.05 * matrices);
}

TEST(Decoder, RefusesWhatItCannotDo) {
    const ModelConfig config{131, 32, 1, 1, 16};
    EXPECT_THROW(Decoder<float>(make_family<float>(config), {.samples = 0, .max_tokens = 8}), UsageError);
    EXPECT_THROW(Decoder<float>(make_family<float>(config), {.samples = 1, .max_tokens = 33}), UsageError);
    Decoder<float> decoder(make_family<float>(config), {.samples = 2, .max_tokens = 8});
    decoder.allocate();
    EXPECT_THROW(decoder.load([](const Tensor&) { return std::vector<float>(3); }), UsageError);
    decoder.load([](const Tensor& tensor) { return std::vector<float>(tensor.elements, 0.1f); });
    EXPECT_THROW(decoder.step({1, 2}), UsageError);  // before a prompt
    EXPECT_THROW(decoder.prefill({}), UsageError);
    EXPECT_THROW(decoder.prefill(std::vector<int>(9, 1)), UsageError);
    EXPECT_THROW(decoder.prefill({131}), UsageError);
    decoder.prefill({1});
    EXPECT_THROW(decoder.step({1}), UsageError);
    EXPECT_THROW(decoder.step({1, -1}), UsageError);
}

}  // namespace
