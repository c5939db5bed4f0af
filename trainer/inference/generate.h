// generate.h: generates several texts at a time from one prompt, of any length.
//   A decoder of samples() texts predicts what follows prefill(tokens), and then what follows step(tokens),
//   which takes a token of every text; draw() returns tokens (trainer/engine/decoder.h). When texts have
//   outgrown the window of max_tokens() that it reads, every token takes a prefill over the last ones:
//   position embeddings are absolute, so all keys and values change when the window moves.
#pragma once
#include <algorithm>
#include <chrono>
#include <climits>
#include <functional>
#include <vector>

#include "kernels/decode/sampling.h"
#include "system/error.h"

struct GenerateOptions {
    int max_tokens = 256;   // new tokens of a text, without the prompt
    int context = INT_MAX;  // tokens of prompt and text together, at which a text ends
    int vocabulary = 0;     // only ids below it are drawn; a model may have more tokens than its tokenizer
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
    const size_t samples = static_cast<size_t>(decoder.samples()),
                 window = static_cast<size_t>(decoder.max_tokens()),
                 room = static_cast<size_t>(o.context) - prompt.size(),
                 most = static_cast<size_t>(o.max_tokens);

    Generation result;
    result.texts.resize(samples);
    const auto prefill = [&](const GeneratedText& text) {
        std::vector<int> tokens = prompt;
        tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
        const size_t read = std::min(tokens.size(), window);
        decoder.prefill({tokens.end() - static_cast<std::ptrdiff_t>(read), tokens.end()});
    };
    std::vector<int> last(samples);  // 0 for a text that has ended
    size_t unfinished = samples;
    const auto start = Clock::now();
    auto prefilled = start;
    for (size_t index = 0; !stopped() && unfinished > 0; index++) {
        const auto draw = [&](size_t first, int count) {
            return decoder.draw(o.sampling, {.seed = o.seed, .step = o.step, .index = index, .sample = first},
                                count, o.vocabulary);
        };
        if (index == 0 || prompt.size() + index <= window) {
            if (index == 0) prefill({});  // for all texts
            else decoder.step(last);
            last = draw(0, decoder.samples());
        } else {
            for (size_t k = 0; k < samples; k++) {
                if (result.texts[k].ending != Ending::stopped) continue;
                prefill(result.texts[k]);
                last[k] = draw(k, 1)[0];
            }
        }
        if (index == 0) prefilled = Clock::now();
        for (size_t k = 0; k < samples; k++) {
            GeneratedText& text = result.texts[k];
            if (text.ending != Ending::stopped) {
                last[k] = 0;
                continue;
            }
            const int token = last[k];
            if (token < 0) throw Error("sampling: the model's logits are not finite");
            text.tokens.push_back(token);
            on_token(static_cast<int>(k), token);
            if (index > 0) result.decoded_tokens++;
            if (std::find(o.ends.begin(), o.ends.end(), token) != o.ends.end())
                text.ending = Ending::end_of_text;
            else if (text.tokens.size() == most) text.ending = Ending::max_tokens;
            else if (text.tokens.size() == room) text.ending = Ending::context;
            else continue;
            unfinished--;
        }
    }
    result.prefill_seconds = seconds(prefilled - start);
    result.decode_seconds = seconds(Clock::now() - prefilled);
    return result;
}
