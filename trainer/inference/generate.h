// generate.h: texts from a model, several at a time, all from one prompt.
//   Decoder is what predicts: prefill(prompt) gives the logits of the token after the prompt, step(tokens)
//   takes a token of every text and gives the logits (samples, Vp) of the ones that follow (decoder.h,
//   window_decoder.h, sliding_decoder.h). If it has end(k), that is called when text k has ended.
#pragma once
#include <algorithm>
#include <chrono>
#include <climits>
#include <functional>
#include <optional>
#include <vector>

#include "system/error.h"
#include "trainer/inference/sampler.h"

struct GenerateOptions {
    int samples = 1;
    int max_tokens = 256;            // of a text, the prompt not counted
    int context = INT_MAX;           // tokens of prompt and text together that the decoder can hold
    int vocabulary = 0;              // ids below it can be drawn; a model may have more than its tokenizer
    int padded_vocabulary = 0;       // logits of a text
    std::optional<int> end_of_text;  // ends a text
    Sampling sampling = {};
    uint64_t seed = 0, step = 0;  // of the draws
};

enum class Ending { end_of_text, max_tokens, context, stopped };

struct GeneratedText {
    std::vector<int> tokens;  // without the prompt; the last one is end-of-text if that ended it
    Ending ending = Ending::stopped;
};

struct Generation {
    std::vector<GeneratedText> texts;
    double prefill_seconds = 0, decode_seconds = 0;
    // drawn in decode_seconds: all but each text's first, which the prompt's pass gives
    size_t decoded_tokens = 0;
};

// Every text ends by itself and then no longer matters to the others: text k is the one that this function
// makes for sample k however many samples there are. on_token(k, token) hears of every token as it is drawn;
// stopped() ends all texts where they are.
// UsageError if the prompt is empty or leaves no room in the context; Error if logits are not finite.
template <class Decoder>
Generation generate(Decoder& decoder, const std::vector<int>& prompt, const GenerateOptions& o,
                    const std::function<void(int, int)>& on_token, const std::function<bool()>& stopped) {
    using Clock = std::chrono::steady_clock;
    const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
    CHECK(!prompt.empty(), "an empty prompt; expected one token or more");
    CHECK(prompt.size() < static_cast<size_t>(o.context),
          "the prompt has {} tokens; expected at most {}, so that one fits into the context of {}",
          prompt.size(), o.context - 1, o.context);
    const size_t samples = static_cast<size_t>(o.samples), vocabulary = static_cast<size_t>(o.vocabulary);
    const size_t room = static_cast<size_t>(o.context) - prompt.size(),
                 most = static_cast<size_t>(o.max_tokens);

    Generation result;
    result.texts.resize(samples);
    std::vector<int> last(samples);  // what a text that has ended gives to step() does not matter
    size_t unfinished = samples, stride = 0;
    const auto start = Clock::now();
    const float* logits = decoder.prefill(prompt);  // one row, for all texts
    const auto prefilled = Clock::now();
    for (size_t index = 0; !stopped(); index++) {
        for (size_t k = 0; k < samples; k++) {
            GeneratedText& text = result.texts[k];
            if (text.ending != Ending::stopped) continue;
            const int token = sample_token({logits + k * stride, vocabulary}, o.sampling,
                                           {.seed = o.seed, .step = o.step, .index = index, .sample = k});
            text.tokens.push_back(token);
            last[k] = token;
            on_token(static_cast<int>(k), token);
            if (token == o.end_of_text) text.ending = Ending::end_of_text;
            else if (text.tokens.size() == most) text.ending = Ending::max_tokens;
            else if (text.tokens.size() == room) text.ending = Ending::context;
            else continue;
            unfinished--;
            if constexpr (requires { decoder.end(k); }) decoder.end(k);
        }
        if (unfinished == 0) break;
        logits = decoder.step(last);
        stride = static_cast<size_t>(o.padded_vocabulary);
    }
    result.prefill_seconds = seconds(prefilled - start);
    result.decode_seconds = seconds(Clock::now() - prefilled);
    for (const GeneratedText& text : result.texts)
        result.decoded_tokens += std::max<size_t>(text.tokens.size(), 1) - 1;
    return result;
}
