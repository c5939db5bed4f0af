#include "trainer/run/generate_options.h"

#include <charconv>

#include "trainer/command_line/command_line.h"
#include "trainer/command_line/help_text.h"
#include "trainer/engine/quantized_weights.h"
#include "trainer/tokenizer/tokenizer.h"

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
        CHECK(error == std::errc() && token >= 0 && (!more || *stop == ','),
              "--tokens {}; expected token ids like 464,3290", text);
        tokens.push_back(token);
        at = stop;
    }
    return tokens;
}

}  // namespace

std::optional<GenerateCommand> parse_generate_command(int argc, const char* const* argv) {
    GenerateCommand c;
    bool greedy = false;
    CLI::App app("Continues a text with a trained model.", "generate_gpt2");
    add_text(app, "CHECKPOINT", c.checkpoint, "PATH", model_path_help)->required();

    auto* text = app.add_option_group("text");
    auto* prompt = add_text(*text, "--prompt", c.prompt, "TEXT", "text to continue [none: start a new text]");
    auto* ids = add_parsed(
        *text, "--tokens", "IDS", "", [&](const std::string& given) { c.tokens = parse_tokens(given); },
        "the prompt as token ids, such as 464,3290");
    prompt->excludes(ids);
    text->add_flag("-i,--interactive", c.interactive,
                   "read prompts from standard input, one per line, and continue each; Ctrl-C ends the "
                   "current text, at the prompt it ends the program")
        ->excludes(prompt)
        ->excludes(ids);
    add_number(*text, "--max-tokens", c.max_tokens, 1, most,
               "largest number of new tokens in a text, which may end earlier");
    text->add_flag(
        "--stop-at-context", c.stop_at_context,
        "end a text when the model's context is full; otherwise it continues from its last tokens only");
    add_number(*text, "--samples", c.samples, 1, 65535, "number of texts to generate");
    text->add_flag("--json", c.json,
                   "print one JSON object: {\"samples\": [{\"tokens\": [new tokens], \"text\": \"...\"}]}");

    auto* sampling = app.add_option_group("sampling");
    auto* temperature =
        add_number(*sampling, "--temperature", c.sampling.temperature, 0, 1e6,
                   "values below 1 make likely tokens likelier; 0: always take the likeliest");
    auto* top_k = add_number(*sampling, "--top-k", c.sampling.top_k, 0, most,
                             "draw only from this many likeliest tokens; 0: from all");
    auto* top_p = add_number(*sampling, "--top-p", c.sampling.top_p, 1e-9, 1,
                             "draw only from the fewest likeliest tokens whose probabilities add up to this");
    sampling->add_flag("--greedy", greedy, "always take the likeliest token")
        ->excludes(temperature)
        ->excludes(top_k)
        ->excludes(top_p);
    add_number(*sampling, "--seed", c.seed, 0, UINT64_MAX, "random seed; the same seed gives the same texts");

    auto* model = app.add_option_group("model");
    model->add_flag("--best", c.best, best_help);
    add_word_or_file(
        *model, "--tokenizer", c.tokenizer, tokenizer_words,
        "how texts become tokens; gpt2-eot: as gpt2, and <|endoftext|> in a prompt is the token "
        "that ends a text; FILE is a tokenizer.json or its folder; none accepts and prints token ids "
        "only [the model's own]");
    add_choice(*model, "--quantize", c.int8, quantizations,
               "int8: store the weights as int8 with one scale per output channel; with bf16 a CPU also "
               "multiplies a prompt as int8, where that is faster");
    add_choice(*model, "--dtype", c.dtype, decoder_dtypes, "type of weights and activations");
    set_examples(app, {{"generate three texts with a run's model",
                        "generate_gpt2 runs/book --prompt 'Once upon a time' --samples 3 --top-k 40"},
                       {"continue one prompt after another with GPT-2",
                        "generate_gpt2 gpt2 --interactive --quantize int8"},
                       {"print the likeliest continuation as JSON",
                        "generate_gpt2 gpt2 --prompt 'The capital of France is' --greedy --json"}});
    if (!parse(app, argc, argv, {"--prompt"})) return std::nullopt;

    if (greedy) c.sampling.temperature = 0;
    return c;
}
