#include "generate_options.h"

#include <charconv>

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
    std::string tokens;
    bool greedy = false;
    CLI::App app("Continues a text with a trained GPT-2.", "generate_gpt2");
    app.option_defaults()->always_capture_default();
    app.add_option("CHECKPOINT", c.checkpoint, model_path_help)->required();

    auto* prompt = app.add_option("--prompt", c.prompt, "the text to continue [an empty one: the model begins a text]")->default_str("");
    auto* ids = app.add_option("--tokens", tokens, "the prompt as token ids, such as 464,3290")->default_str("");
    prompt->excludes(ids);
    app.add_option("--tokenizer", c.tokenizer, "gpt2 or byte [the model's]")->check(CLI::IsMember({"gpt2", "byte"}));
    app.add_option("--max-tokens", c.max_tokens, "new tokens of a sample, unless it ends before")->check(CLI::Range(1, 1 << 30));
    app.add_option("--samples", c.samples, "texts to generate, side by side")->check(CLI::Range(1, 65535));

    auto* temperature = app.add_option("--temperature", c.sampling.temperature, "below 1: likelier tokens more often; 0: always the likeliest")
                            ->check(between(0, 1e6));
    auto* top_k =
        app.add_option("--top-k", c.sampling.top_k, "draw from this many likeliest tokens only, 0: from all")->check(CLI::Range(0, 1 << 30));
    auto* top_p =
        app.add_option("--top-p", c.sampling.top_p, "draw from the fewest likeliest tokens with this probability together")->check(between(1e-9, 1));
    app.add_option("--seed", c.seed, "of the draws: the same seed, the same texts");
    app.add_flag("--greedy", greedy, "always the likeliest token")->excludes(temperature)->excludes(top_k)->excludes(top_p);

    add_choice(app, "--quantize", c.int8, quantizations, "weights as int8 with a scale for every output");
    add_choice(app, "--dtype", c.dtype, decoder_dtypes, "of weights and activations");
    app.add_flag("--json", c.json, "print one object: {\"samples\": [{\"tokens\": [new ones], \"text\": \"..\"}]}");
    if (!parse(app, argc, argv, {"--prompt"})) return std::nullopt;

    if (*ids) c.tokens = parse_tokens(tokens);
    if (greedy) c.sampling.temperature = 0;
    check(c.sampling);
    return c;
}
