// Decoder: generating one token at a time with a cache must give the logits of plain_gpt2.h. And generate(),
// which draws texts from a decoder: how they end, and that none influences another.
#include <numeric>

#include "decoder_agrees.cuh"
#include "plain_text.cuh"
#include "trainer/inference/generate.h"

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

TEST(Decoder, PlansWhatItAllocates) {
    const ModelConfig config{256, 64, 2, 2, 64};
    const Generator<bfloat16> plain(make_family<bfloat16>(config), {.samples = 3, .max_tokens = 40}),
        int8(make_family<bfloat16>(config), {.samples = 3, .max_tokens = 40, .int8 = true});
    // 40 tokens are two tiles of 32 in bf16
    const size_t matrices = 256 * 64 + 2 * 12 * 64 * 64, cached = 2 * 2 * 3 * 2 * 64 * 32;
    // behind every buffer; int8 has one more buffer, for the scales of each of the nine matrices
    constexpr size_t gap = simt::checked ? 256 : 0;
    EXPECT_EQ(bytes_of(plain.memory_plan(), "keys and values"), cached * 2 + 4 * gap);
    const size_t saved =
        bytes_of(plain.memory_plan(), "parameters") - bytes_of(int8.memory_plan(), "parameters");
    EXPECT_NEAR(static_cast<double>(saved + 9 * gap), static_cast<double>(matrices), 0.05 * matrices);
}

TEST(Decoder, RefusesWhatItCannotDo) {
    const ModelConfig config{131, 32, 1, 1, 16};
    EXPECT_THROW(Generator<float>(make_family<float>(config), {.samples = 0, .max_tokens = 8}), UsageError);
    EXPECT_THROW(Generator<float>(make_family<float>(config), {.samples = 1, .max_tokens = 33}), UsageError);
    const auto generator = generator_of(*random_model<float>(config), {.samples = 2, .max_tokens = 8});
    Decoder<float>& decoder = generator->decoder();
    EXPECT_THROW(decoder.step({1, 2}), UsageError);  // before a prompt
    EXPECT_THROW(decoder.draw({}, {}, 1, 131), UsageError);
    EXPECT_THROW(decoder.prefill({}), UsageError);
    EXPECT_THROW(decoder.prefill(std::vector<int>(9, 1)), UsageError);
    EXPECT_THROW(decoder.prefill({131}), UsageError);
    decoder.prefill({1});
    EXPECT_THROW(decoder.step({1}), UsageError);
    EXPECT_THROW(decoder.step({1, -1}), UsageError);
    EXPECT_THROW(decoder.draw({}, {}, 3, 131), UsageError);
    EXPECT_THROW(decoder.draw({}, {}, 2, 132), UsageError);
    generator->load([](const Tensor&, size_t, std::span<float> to) { std::ranges::fill(to, NAN); });
    decoder.prefill({1});
    EXPECT_EQ(decoder.draw({}, {}, 1, 131), std::vector{-1});
}

constexpr int V = 11, end_of_text = 10;
const GenerateOptions options{
    .max_tokens = 40, .vocabulary = V, .ends = {end_of_text}, .sampling = {0.9, 8, 0.95}, .seed = 5};

// Generates texts after a prompt, with a window of max_tokens.
const std::vector<int> prompt{1, 2, 3};
struct TextGenerator {
    TextGenerator(int samples, int max_tokens)
        : model(random_model<float>({V, 48, 1, 2, 16})),
          generator(generator_of(*model, {samples, max_tokens})) {}
    Generation run(
        const GenerateOptions& o = options, const std::function<void(int, int)>& on_token = [](int, int) {},
        const std::function<bool()>& stopped = [] { return false; }) {
        return generate(generator->decoder(), prompt, o, on_token, stopped);
    }
    const std::unique_ptr<Model<float>> model;
    const std::unique_ptr<Generator<float>> generator;
};

// One of eleven tokens ends a text, so that texts end at very different lengths, before and after the window
// slides; and none influences another.
TEST(Generate, TextsAreThoseOfWholeForwardPasses) {
    for (const size_t window : {48, 16}) {
        TextGenerator many(9, static_cast<int>(window));
        std::vector<size_t> lengths;
        std::vector<std::vector<int>> heard(9);
        const Generation all =
            many.run(options, [&](int k, int token) { heard[static_cast<size_t>(k)].push_back(token); });
        for (const GeneratedText& text : all.texts) {
            std::vector<int> expected = plain::text(*many.model, prompt, 40, window, options.sampling,
                                                    {.seed = 5, .sample = lengths.size()});
            const auto end = std::ranges::find(expected, end_of_text);
            if (end != expected.end()) expected.erase(end + 1, expected.end());
            EXPECT_EQ(text.tokens, expected) << "text " << lengths.size();
            EXPECT_EQ(text.ending == Ending::end_of_text, expected.back() == end_of_text);
            EXPECT_EQ(heard[lengths.size()], expected);
            lengths.push_back(expected.size());
        }
        // all but the first of each, which comes from the prompt
        EXPECT_EQ(all.decoded_tokens, std::accumulate(lengths.begin(), lengths.end(), size_t{0}) - 9);
        EXPECT_LT(std::ranges::min(lengths), 13u);
        EXPECT_GT(std::ranges::max(lengths), 14u);
    }
}

TEST(Generate, EndsAtEndOfTextAtTheMostTokensOrWhereTheContextIsFull) {
    TextGenerator two(2, 48);
    GenerateOptions o = options;
    o.ends = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const auto expect = [&](size_t tokens, Ending ending) {
        for (const GeneratedText& text : two.run(o).texts) {
            EXPECT_EQ(text.tokens.size(), tokens);
            EXPECT_EQ(text.ending, ending);
        }
        // no step follows the last token
        EXPECT_EQ(two.generator->decoder().length(), 3 + static_cast<int>(tokens) - 1);
    };
    expect(1, Ending::end_of_text);
    o.ends = {};
    expect(40, Ending::max_tokens);
    o.context = 20;
    expect(17, Ending::context);  // 3 + 17 = 20
    o.context = 43;               // both limits at once: the requested number is generated
    expect(40, Ending::max_tokens);
    o.context = 4;
    expect(1, Ending::context);
    o.context = 3;
    EXPECT_THROW(two.run(o), UsageError);
}

TEST(Generate, StopsBetweenTokens) {
    int heard = 0;
    const GenerateOptions endless{.max_tokens = 40, .vocabulary = V};
    const Generation result = TextGenerator(2, 16).run(
        endless, [&](int, int) { heard++; }, [&] { return heard >= 6; });
    for (const GeneratedText& text : result.texts) {
        EXPECT_EQ(text.tokens.size(), 3u);
        EXPECT_EQ(text.ending, Ending::stopped);
    }
}

}  // namespace
