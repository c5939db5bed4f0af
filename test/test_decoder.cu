// Decoder: generating one token at a time with a cache must give the logits of plain_gpt2.h.
#include "decoder_agrees.cuh"
#include "plain_sampler.h"
#include "temporary_folder.h"

namespace {

// One sample, to the context's end; odd channels and head sizes; a prompt that fills the context; many
// samples; past the attention's chunk.
const std::vector<DecoderShape> shapes = {{{131, 24, 2, 3, 48}, 1, 1, 24},
                                          {{257, 40, 2, 3, 99}, 3, 7, 12},
                                          {{64, 20, 1, 2, 192}, 5, 20, 20},
                                          {{64, 24, 1, 2, 64}, 17, 3, 6},
                                          {{70, 300, 1, 1, 32}, 2, 253, 259}};

template <class T>
std::vector<double> plain_logits(Model<T>& model, const std::vector<int>& tokens) {
    plain::GPT2<double> plain = plain_copy<double>(model);
    plain.forward(tokens, tokens, tokens.size());
    return plain.activations["logits"];
}

TEST(Decoder, GivesThePlainLoopsLogits) {
    expect_decoder_agrees<float>(shapes, false, plain_logits<float>);
    expect_decoder_agrees<bfloat16>(shapes, false, plain_logits<bfloat16>);
}

TEST(Decoder, Int8GivesTheLogitsOfTheQuantizedWeights) {
    expect_decoder_agrees<float>(shapes, true, plain_logits<float>);
    expect_decoder_agrees<bfloat16>(shapes, true, plain_logits<bfloat16>);
}

// After a prompt all samples draw from its one row, afterwards each from its own.
TEST(Decoder, DrawsFromTheLogits) {
    const ModelConfig config{131, 24, 2, 3, 48};
    const auto model = random_model<float>(config);
    Generator<float> generator(make_family<float>(config), {.samples = 3, .max_tokens = 24});
    generator.allocate();
    generator.load(values_of(*model));
    Decoder<float>& decoder = generator.decoder();
    const Sampling sampling{0.9, 20, 0.95};
    const auto expected = [&](size_t row, uint64_t index, uint64_t sample, int V) {
        const std::vector<float> logits = decoder.logits();
        return plain::sample_token({&logits[row * static_cast<size_t>(config.Vp())], static_cast<size_t>(V)},
                                   sampling, {.seed = 4, .index = index, .sample = sample});
    };
    decoder.prefill({1, 2, 3});
    EXPECT_EQ(decoder.draw(sampling, {.seed = 4, .sample = 2}, 1, 131),
              (std::vector{expected(0, 0, 2, 131)}));
    for (uint64_t index = 0; index < 10; index++) {
        const std::vector<int> drawn = decoder.draw(sampling, {.seed = 4, .index = index}, 3, 100);
        ASSERT_EQ(drawn.size(), 3u);
        for (size_t k = 0; k < 3; k++) EXPECT_EQ(drawn[k], expected(index == 0 ? 0 : k, index, k, 100));
        decoder.step(drawn);
    }
    EXPECT_THROW(decoder.draw(sampling, {}, 4, 131), UsageError);
    EXPECT_THROW(decoder.draw(sampling, {}, 3, 132), UsageError);
    generator.load([](const Tensor&, size_t, std::span<float> to) { std::ranges::fill(to, NAN); });
    decoder.prefill({1});
    EXPECT_EQ(decoder.draw(sampling, {}, 1, 131), std::vector{-1});
}

TEST(Decoder, PlansWhatItAllocates) {
    const ModelConfig config{256, 64, 2, 2, 64};
    const Generator<bfloat16> plain(make_family<bfloat16>(config), {.samples = 3, .max_tokens = 40}),
        int8(make_family<bfloat16>(config), {.samples = 3, .max_tokens = 40, .int8 = true});
    const auto bytes = [](const auto& generator, const std::string& name) {
        for (const auto& [part, bytes] : generator.memory_plan()) {
            if (part == name) return bytes;
        }
        return size_t{0};
    };
    // 40 tokens are two tiles of 32 in bf16
    const size_t matrices = 256 * 64 + 2 * 12 * 64 * 64, cached = 2 * 2 * 3 * 2 * 64 * 32;
    // behind every buffer; int8 has one more buffer, for the scales of each of the nine matrices
    constexpr size_t gap = simt::checked ? 256 : 0;
    EXPECT_EQ(bytes(plain, "keys and values"), cached * 2 + 4 * gap);
    EXPECT_NEAR(static_cast<double>(bytes(plain, "parameters") - bytes(int8, "parameters") + 9 * gap),
                static_cast<double>(matrices), 0.05 * matrices);
}

TEST(Decoder, RefusesWhatItCannotDo) {
    const ModelConfig config{131, 32, 1, 1, 16};
    EXPECT_THROW(Generator<float>(make_family<float>(config), {.samples = 0, .max_tokens = 8}), UsageError);
    EXPECT_THROW(Generator<float>(make_family<float>(config), {.samples = 1, .max_tokens = 33}), UsageError);
    Generator<float> generator(make_family<float>(config), {.samples = 2, .max_tokens = 8});
    generator.allocate();
    generator.load([](const Tensor&, size_t, std::span<float> to) { std::ranges::fill(to, 0.1f); });
    Decoder<float>& decoder = generator.decoder();
    EXPECT_THROW(decoder.step({1, 2}), UsageError);  // before a prompt
    EXPECT_THROW(decoder.draw({}, {}, 1, 131), UsageError);
    EXPECT_THROW(decoder.prefill({}), UsageError);
    EXPECT_THROW(decoder.prefill(std::vector<int>(9, 1)), UsageError);
    EXPECT_THROW(decoder.prefill({131}), UsageError);
    decoder.prefill({1});
    EXPECT_THROW(decoder.step({1}), UsageError);
    EXPECT_THROW(decoder.step({1, -1}), UsageError);
}

}  // namespace
