// decoder_agrees.cuh: generating one token at a time with a cache gives the logits of whole forward passes.
#pragma once
#include "model.cuh"
#include "trainer/engine/quantized_weights.h"
#include "trainer/inference/generator.h"

struct DecoderShape {
    ModelConfig config;
    int samples, prompt, tokens;
};

// A generator with a model's weights.
template <class T>
std::unique_ptr<Generator<T>> generator_of(Model<T>& model, const DecoderOptions& options) {
    auto generator = std::make_unique<Generator<T>>(make_family<T>(model.config()), options);
    generator->allocate();
    generator->load([&](const Tensor& tensor, size_t first, std::span<float> to) {
        std::copy_n(model.parameter(tensor).begin() + static_cast<std::ptrdiff_t>(first), to.size(),
                    to.begin());
    });
    return generator;
}

// The error of a decoder's logits, relative to their norm. fp32: rounding of sums. bf16: each of a dozen
// activations a layer is rounded to 2^-9 once (1.1e-2 was measured). int8_product.h also rounds what a
// prompt's products multiply, by 0.6 % of its standard deviation four times a layer (2.9e-2).
template <class T>
double decoder_tolerance(Gemm::OnCpu int8_products) {
    if (std::is_same_v<T, float>) return 1e-5;
    return int8_products == Gemm::OnCpu::packed ? 4e-2 : 2e-2;
}

// Compares the decoder's logits, after a prompt and after every further token of every sample, with those of
// whole forward passes: logits_of(model, tokens) (tokens, V). Attention is causal, so a text's logits hold
// those of everything that it begins with. With int8 the model has the quantized weights.
template <class T, class LogitsOf>
void expect_decoder_agrees(const DecoderShape& shape, bool int8, Gemm::OnCpu products,
                           const LogitsOf& logits_of) {
    const ModelConfig& config = shape.config;
    SCOPED_TRACE(testing::Message() << "V = " << config.V << ", C = " << config.C
                                    << ", samples = " << shape.samples << ", int8 = " << int8);
    const auto model = random_model<T>(config);
    const auto generator = generator_of(
        *model,
        {.samples = shape.samples, .max_tokens = shape.tokens, .int8 = int8, .int8_products = products});
    Decoder<T>& decoder = generator->decoder();
    if (int8) quantize_weights(*model);
    const auto expect = [&](const auto& logits, int tokens, int k = 0) {
        const std::vector<float> rows = decoder.logits();
        const auto row = rows.begin() + k * config.Vp();
        const auto expected = logits.begin() + (tokens - 1) * config.V;
        EXPECT_LE(
            relative_error(std::vector(row, row + config.V), std::vector(expected, expected + config.V)),
            decoder_tolerance<T>(products))
            << tokens << " tokens";
    };
    decoder.prefill({1, 2, 3});  // a prompt starts over
    expect(logits_of(*model, {1, 2, 3}), 3);
    const std::vector<int> prompt = random_tokens(shape.prompt, config.V, 5);
    std::vector<std::vector<int>> texts;
    std::vector<decltype(logits_of(*model, prompt))> expected;
    for (int k = 0; k < shape.samples; k++) {
        texts.push_back(random_tokens(shape.tokens, config.V, 6u + static_cast<unsigned>(k)));
        std::ranges::copy(prompt, texts.back().begin());
        expected.push_back(logits_of(*model, texts.back()));
    }
    decoder.prefill(prompt);
    expect(expected[0], shape.prompt);
    for (int t = shape.prompt; t < shape.tokens; t++) {
        std::vector<int> next;
        for (const std::vector<int>& text : texts) next.push_back(text[static_cast<size_t>(t)]);
        decoder.step(next);
        for (int k = 0; k < shape.samples; k++) expect(expected[static_cast<size_t>(k)], t + 1, k);
    }
    EXPECT_EQ(decoder.length(), shape.tokens);
    EXPECT_THROW(decoder.step(std::vector<int>(texts.size(), 0)), UsageError);
}

// The same for all shapes; with int8 in bf16, for each way of multiplying a prompt by int8 weights.
template <class T, class LogitsOf>
void expect_decoder_agrees(const std::vector<DecoderShape>& shapes, bool int8, const LogitsOf& logits_of) {
    for (const DecoderShape& shape : shapes) {
        expect_decoder_agrees<T>(shape, int8, Gemm::OnCpu::library, logits_of);
        if (int8 && !std::is_same_v<T, float> && !simt::is_gpu())
            expect_decoder_agrees<T>(shape, int8, Gemm::OnCpu::packed, logits_of);
    }
}
