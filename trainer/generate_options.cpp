#include "generate_options.h"

#include <charconv>
#include <cstdint>

#include "command_line.h"
#include "quantized_weights.h"

namespace {

const std::map<std::string, DType> decoder_dtypes = {{"fp32", DType::fp32}, {"bf16", DType::bf16}};

// "464,3290": ids with commas between them.
std::vector<int> parse_tokens(const std::string& text) {
    std::vector<int> tokens;
    const char *at = text.data(), *end = at + text.size();
    for (bool more = true; more; at++) {
        int token = -1;
        const auto [stop, error] = std::from_chars(at, end, token);
        more = stop != end;
        CHECK(error == std::errc() && token >= 0 && (!more || *stop == ','), "--tokens {}; expected token ids like 464,3290", text);
        tokens.push_back(token);
        at = stop;
    }
    return tokens;
}

}  // namespace

std::optional<GenerateCommand> parse_generate_command(int argc, const char* const* argv) {
    GenerateCommand c;
    bool greedy = false;
    CLI::App app("Continues a text with a trained GPT-2.", "generate_gpt2");
    add_text(app, "CHECKPOINT", c.checkpoint, "PATH", model_path_help)->required();

    auto* prompt = add_text(app, "--prompt", c.prompt, "TEXT", "the text to continue [an empty one: the model begins a text]");
    auto* ids = add_parsed(
        app, "--tokens", "IDS", "", [&](const std::string& text) { c.tokens = parse_tokens(text); }, "the prompt as token ids, such as 464,3290");
    prompt->excludes(ids);
    app.add_flag("-i,--interactive", c.interactive, "a prompt a line from standard input, and a text after each, until the input ends; "
                                                    "Ctrl-C ends a text, or at the prompt the program")
        ->excludes(prompt)
        ->excludes(ids);
    app.add_flag("--best", c.best, best_help);
    add_word(app, "--tokenizer", c.tokenizer, {"gpt2", "byte"}, "how the text becomes tokens [the model's]");
    add_number(app, "--max-tokens", c.max_tokens, 1, most, "new tokens of a sample, unless it ends before");
    app.add_flag("--stop-at-context", c.stop_at_context,
                 "end a text when the model's context is full, instead of going on with its last tokens alone");
    add_number(app, "--samples", c.samples, 1, 65535, "texts to generate, side by side");

    auto* temperature =
        add_number(app, "--temperature", c.sampling.temperature, 0, 1e6, "below 1: likelier tokens more often; 0: always the likeliest");
    auto* top_k = add_number(app, "--top-k", c.sampling.top_k, 0, most, "draw from this many likeliest tokens only, 0: from all");
    auto* top_p = add_number(app, "--top-p", c.sampling.top_p, 1e-9, 1, "draw from the fewest likeliest tokens with this probability together");
    add_number(app, "--seed", c.seed, 0, UINT64_MAX, "of the draws: the same seed, the same texts");
    app.add_flag("--greedy", greedy, "always the likeliest token")->excludes(temperature)->excludes(top_k)->excludes(top_p);

    add_choice(app, "--quantize", c.int8, quantizations, "weights as int8 with a scale for every output");
    add_choice(app, "--dtype", c.dtype, decoder_dtypes, "of weights and activations");
    app.add_flag("--json", c.json, "print one object: {\"samples\": [{\"tokens\": [new ones], \"text\": \"..\"}]}");
    if (!parse(app, argc, argv, {"--prompt"})) return std::nullopt;

    if (greedy) c.sampling.temperature = 0;
    check(c.sampling);
    return c;
}
