// generate() with a decoder whose logits are a known function of each text's tokens: how texts end, and
// that none influences another.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "plain_sampler.h"
#include "trainer/inference/generate.h"

namespace {

constexpr int V = 11, Vp = 16, end_of_text = 10;

// Logits from a hash of all tokens so far; NaN for a text that has ended and for padding, so that reading
// them shows.
class HashDecoder {
public:
    HashDecoder(int samples, float end_logit)
        : rows_(static_cast<size_t>(samples) * Vp), texts_(static_cast<size_t>(samples)), end_(end_logit) {}

    int samples() const { return static_cast<int>(texts_.size()); }
    int max_tokens() const { return INT_MAX; }
    void prefill(const std::vector<int>& prompt) {
        prefills++;
        for (auto& text : texts_) text = prompt;
        for (size_t k = 0; k < texts_.size(); k++) fill(k);
    }
    void step(const std::vector<int>& tokens) {
        steps++;
        EXPECT_EQ(tokens.size(), texts_.size());
        EXPECT_TRUE(std::ranges::all_of(tokens, [](int token) { return token >= 0 && token < V; }));
        for (size_t k = 0; k < texts_.size(); k++) {
            texts_[k].push_back(tokens[k]);
            fill(k);
        }
    }
    // -1 for a text that has ended.
    std::vector<int> draw(const Sampling& sampling, Draw draw, int count, int ids) {
        std::vector<int> tokens;
        for (int row = 0; row < count; row++, draw.sample++) {
            const float* const logits = rows_.data() + row * Vp;
            tokens.push_back(std::isnan(logits[0])
                                 ? -1
                                 : plain::sample_token({logits, static_cast<size_t>(ids)}, sampling, draw));
        }
        return tokens;
    }
    int prefills = 0, steps = 0;

private:
    void fill(size_t k) {
        float* row = rows_.data() + k * Vp;
        std::fill(row, row + Vp, NAN);
        bool ended = false;
        uint32_t hash = 1;
        for (const int token : texts_[k]) {
            hash = (hash ^ static_cast<uint32_t>(token)) * 16777619u;
            ended |= token == end_of_text;
        }
        for (uint32_t t = 0; t < V && !ended; t++)
            row[t] = static_cast<float>(((hash ^ t) * 2654435761u) >> 20) * 0x1p-11f;
        if (!ended) row[end_of_text] = end_;
    }
    std::vector<float> rows_;
    std::vector<std::vector<int>> texts_;
    const float end_;
};

const GenerateOptions options{.max_tokens = 40, .vocabulary = V, .ends = {end_of_text}, .seed = 5};

Generation run(
    HashDecoder& decoder, const GenerateOptions& o = options,
    const std::function<void(int, int)>& on_token = [](int, int) {}) {
    return generate(decoder, {1, 2, 3}, o, on_token, [] { return false; });
}

// The end is likely enough that texts end at very different lengths.
constexpr float sometimes = 0.5f;

TEST(Generate, EachOfManyTextsIsTheOneThatFewerGive) {
    HashDecoder many(9, sometimes);
    const Generation all = run(many);
    EXPECT_EQ(many.prefills, 1);
    size_t shortest = 100, longest = 0;
    for (int fewer = 1; fewer < 9; fewer++) {
        HashDecoder few(fewer, sometimes);
        const Generation part = run(few);
        for (size_t k = 0; k < static_cast<size_t>(fewer); k++) {
            EXPECT_EQ(part.texts[k].tokens, all.texts[k].tokens) << k << " of " << fewer;
            EXPECT_EQ(part.texts[k].ending, all.texts[k].ending);
            shortest = std::min(shortest, part.texts[k].tokens.size());
            longest = std::max(longest, part.texts[k].tokens.size());
        }
    }
    EXPECT_LT(shortest, longest);  // otherwise no text above ended before others
    EXPECT_NE(all.texts[0].tokens, all.texts[1].tokens);
}

TEST(Generate, EndsAtEndOfTextAtTheMostTokensOrWhereTheContextIsFull) {
    HashDecoder never(2, -INFINITY), always(2, 100);
    GenerateOptions o = options;
    for (const GeneratedText& text : run(never, o).texts) {
        EXPECT_EQ(text.tokens.size(), 40u);
        EXPECT_EQ(text.ending, Ending::max_tokens);
    }
    EXPECT_EQ(never.steps, 39);  // no step follows the last token
    for (const GeneratedText& text : run(always, o).texts) {
        EXPECT_EQ(text.tokens, (std::vector<int>{end_of_text}));
        EXPECT_EQ(text.ending, Ending::end_of_text);
    }
    EXPECT_EQ(always.steps, 0);
    o.context = 20;
    for (const GeneratedText& text : run(never, o).texts) {
        EXPECT_EQ(text.tokens.size(), 17u);  // 3 + 17 = 20
        EXPECT_EQ(text.ending, Ending::context);
    }
    o.context = 43;  // both limits at once: the requested number is generated
    EXPECT_EQ(run(never, o).texts[0].ending, Ending::max_tokens);
    o.context = 4;
    EXPECT_EQ(run(never, o).texts[0].tokens.size(), 1u);
    o.context = 3;
    EXPECT_THROW(run(never, o), UsageError);
}

TEST(Generate, EveryTokenIsHeardOfAsItIsDrawn) {
    HashDecoder decoder(3, sometimes);
    std::vector<std::vector<int>> heard(3);
    const Generation result =
        run(decoder, options, [&](int k, int token) { heard[static_cast<size_t>(k)].push_back(token); });
    size_t decoded = 0;
    for (size_t k = 0; k < 3; k++) {
        EXPECT_EQ(heard[k], result.texts[k].tokens);
        decoded += heard[k].size() - 1;
    }
    EXPECT_EQ(result.decoded_tokens, decoded);
}

TEST(Generate, StopsBetweenTokens) {
    HashDecoder decoder(2, -INFINITY);
    int heard = 0;
    const Generation result = generate(
        decoder, {1}, options, [&](int, int) { heard++; }, [&] { return heard >= 6; });
    for (const GeneratedText& text : result.texts) {
        EXPECT_EQ(text.tokens.size(), 3u);
        EXPECT_EQ(text.ending, Ending::stopped);
    }
}

}  // namespace
