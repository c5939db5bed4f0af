// generate.h: generates several texts at a time from one prompt, of any length.
//   A decoder predicts: prefill(tokens) returns the logits of the token after these; step(tokens), if there
//   is a cache, takes a token of every text and returns the logits (samples, Vp) of the next ones. When texts
//   have outgrown the window, every token takes a prefill over the last ones: position embeddings are
//   absolute, so all keys and values change when the window moves.
#pragma once
#include <algorithm>
#include <chrono>
#include <climits>
#include <functional>
#include <vector>

#include "system/error.h"
#include "trainer/inference/sampler.h"

struct GenerateOptions {
    int samples = 1;
    int max_tokens = 256;   // new tokens of a text, without the prompt
    int context = INT_MAX;  // tokens of prompt and text together that the decoder can hold
    int vocabulary = 0;     // only ids below it are drawn; a model may have more tokens than its tokenizer
    int padded_vocabulary = 0;   // logits per text that step() returns
    int window = INT_MAX;        // tokens that the decoder reads at most, the last ones of a text
    std::vector<int> ends = {};  // tokens that end a text
    Sampling sampling = {};
    uint64_t seed = 0, step = 0;  // key of the random draws
};

enum class Ending { end_of_text, max_tokens, context, stopped };

struct GeneratedText {
    std::vector<int> tokens;  // without the prompt; the last one is one of `ends` if it ended the text
    Ending ending = Ending::stopped;
};

struct Generation {
    std::vector<GeneratedText> texts;
    double prefill_seconds = 0, decode_seconds = 0;
    // tokens drawn in decode_seconds: all but each text's first one, which comes from the prefill
    size_t decoded_tokens = 0;
};

// A model without a cache as a decoder: every token takes a forward pass over the whole window. This is slow,
// but needs no memory beyond the model's. Training draws its samples so.
template <class Model>
struct WithoutCache {
    Model& model;
    std::vector<float> logits = {};
    const float* prefill(const std::vector<int>& tokens) {
        logits = model.next_token_logits(tokens);
        return logits.data();
    }
};

// Texts are independent: text k is the same however many samples there are, and each ends by itself.
// on_token(k, token) is called for every token as it is drawn. If stopped() returns true, all texts end
// where they are.
// UsageError if the prompt is empty or leaves no room in the context; Error if logits are not finite.
template <class Decoder>
Generation generate(Decoder& decoder, const std::vector<int>& prompt, const GenerateOptions& o,
                    const std::function<void(int, int)>& on_token, const std::function<bool()>& stopped) {
    using Clock = std::chrono::steady_clock;
    const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
    CHECK(!prompt.empty(), "an empty prompt; expected one token or more");
    CHECK(prompt.size() < static_cast<size_t>(o.context),
          "the prompt has {} tokens; expected at most {}, so that a new token fits into the context of {}",
          prompt.size(), o.context - 1, o.context);
    const size_t samples = static_cast<size_t>(o.samples), vocabulary = static_cast<size_t>(o.vocabulary);
    const size_t room = static_cast<size_t>(o.context) - prompt.size(),
                 most = static_cast<size_t>(o.max_tokens);

    Generation result;
    result.texts.resize(samples);
    const auto logits_after = [&](const GeneratedText& text) {
        std::vector<int> tokens = prompt;
        tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
        const size_t read = std::min(tokens.size(), static_cast<size_t>(o.window));
        return decoder.prefill({tokens.end() - static_cast<std::ptrdiff_t>(read), tokens.end()});
    };
    std::vector<int> last(samples);  // the value for a text that has ended has no effect
    std::vector<float> rows;         // logits of texts that have outgrown the window
    size_t unfinished = samples, stride = 0;
    const auto start = Clock::now();
    const float* logits = logits_after({});  // one row, for all texts
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
            if (std::find(o.ends.begin(), o.ends.end(), token) != o.ends.end())
                text.ending = Ending::end_of_text;
            else if (text.tokens.size() == most) text.ending = Ending::max_tokens;
            else if (text.tokens.size() == room) text.ending = Ending::context;
            else continue;
            unfinished--;
        }
        if (unfinished == 0) break;
        if constexpr (requires { decoder.step(last); }) {
            if (prompt.size() + index < static_cast<size_t>(o.window)) {
                logits = decoder.step(last);
                stride = static_cast<size_t>(o.padded_vocabulary);
                continue;
            }
        }
        rows.resize(samples * vocabulary);
        for (size_t k = 0; k < samples; k++) {
            const GeneratedText& text = result.texts[k];
            if (text.ending == Ending::stopped)
                std::copy_n(logits_after(text), vocabulary, &rows[k * vocabulary]);
        }
        logits = rows.data();
        stride = vocabulary;
    }
    result.prefill_seconds = seconds(prefilled - start);
    result.decode_seconds = seconds(Clock::now() - prefilled);
    for (const GeneratedText& text : result.texts)
        result.decoded_tokens += std::max<size_t>(text.tokens.size(), 1) - 1;
    return result;
}
