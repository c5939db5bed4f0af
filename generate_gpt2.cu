// generate_gpt2.cu: text from a trained model. Prompt -> tokens -> Decoder::prefill -> a token at a time: sample, show, Decoder::step.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "decoder.h"
#include "error.h"
#include "generate.h"
#include "generate_options.h"
#include "memory_fit.h"
#include "model_file.h"
#include "print_line.h"
#include "printable.h"
#include "run_main.h"
#include "stop_signal.h"
#include "tokenizer.h"
#include "utf8_stream.h"

namespace {

const bool terminal = isatty(STDOUT_FILENO) != 0;

// A terminal, unlike a file, obeys control characters: it must not do what a model says.
std::string text_for_output(std::string_view bytes) { return terminal ? printable(bytes, "\n\t") : replace_invalid_utf8(bytes); }

void show(const std::string& text) { write_output(text, "the text"); }

std::vector<int> prompt_of(const GenerateCommand& command, Tokenizer& tokenizer, const GPT2Config& config) {
    std::vector<int> prompt = command.tokens;
    if (prompt.empty()) {
        for (const uint16_t token : tokenizer.encode(command.prompt)) prompt.push_back(token);
    }
    if (prompt.empty()) prompt = {tokenizer.end_of_text().value_or('\n')};
    for (const int token : prompt) CHECK(token < config.V, "token {} of the prompt; expected 0 to {}", token, config.V - 1);
    return prompt;
}

// What the tokens say, byte for byte, without the one that ends the text.
std::string text_of(const GeneratedText& generated, const Tokenizer& tokenizer) {
    std::string bytes;
    for (const int token : generated.tokens) {
        if (token != tokenizer.end_of_text()) bytes += tokenizer.token_bytes(token);
    }
    return bytes;
}

std::string json_of(const Generation& generation, const Tokenizer& tokenizer) {
    nlohmann::ordered_json samples = nlohmann::ordered_json::array();
    for (const GeneratedText& text : generation.texts)
        samples.push_back({{"tokens", text.tokens}, {"text", replace_invalid_utf8(text_of(text, tokenizer))}});
    return nlohmann::ordered_json{{"samples", samples}}.dump(-1, ' ', terminal) + "\n";  // on a terminal escaped: U+007F on could be commands
}

std::string separated(const Generation& generation, const Tokenizer& tokenizer) {
    std::string all;
    for (const GeneratedText& text : generation.texts) {
        if (!all.empty()) all += "---\n";
        all += text_for_output(text_of(text, tokenizer));
        if (!all.ends_with('\n')) all += '\n';
    }
    return all;
}

void report(const Generation& generation, size_t prompt_tokens, int context) {
    for (const GeneratedText& text : generation.texts) {
        if (text.ending != Ending::context) continue;
        print_line(stderr, fmt::format("the context of {} tokens is full", context));
        break;
    }
    const auto rate = [](size_t tokens, double seconds) {
        return fmt::format("{} tokens in {:.3f} s ({:.1f} tokens/s)", tokens, seconds, static_cast<double>(tokens) / std::max(seconds, 1e-9));
    };
    print_line(stderr, fmt::format("prompt: {}; generated: {}", rate(prompt_tokens, generation.prefill_seconds),
                                   rate(generation.decoded_tokens, generation.decode_seconds)));
}

template <class T>
void generate_texts(const GenerateCommand& command) {
    const std::unique_ptr<ModelFile> file = open_model(command.checkpoint);
    const GPT2Config& config = file->config();
    const std::unique_ptr<Tokenizer> tokenizer =
        make_tokenizer_for(command.checkpoint, config.V, command.tokenizer.empty() ? tokenizer_name(*file) : command.tokenizer);
    const std::vector<int> prompt = prompt_of(command, *tokenizer, config);
    const size_t wanted = prompt.size() + static_cast<size_t>(command.max_tokens);
    const int cached = static_cast<int>(std::min(wanted, static_cast<size_t>(config.context)));

    Decoder<T> decoder(config, {.samples = command.samples, .max_tokens = cached, .int8 = command.int8});
    check_fits(decoder.memory_plan(), "the model with its cache", "fewer --samples or --max-tokens, or --quantize int8");
    decoder.allocate();
    decoder.load([&](const Tensor& tensor) { return file->values(tensor); });

    const bool streaming = command.samples == 1 && !command.json;
    Utf8Stream stream;
    const auto on_token = [&](int, int token) {
        if (streaming && token != tokenizer->end_of_text()) show(text_for_output(stream.push(tokenizer->token_bytes(token))));
    };
    const Generation generation = generate(decoder, prompt,
                                           {.samples = command.samples,
                                            .max_tokens = command.max_tokens,
                                            .context = config.context,
                                            .vocabulary = std::min(tokenizer->vocab_size(), config.V),
                                            .padded_vocabulary = config.Vp(),
                                            .end_of_text = tokenizer->end_of_text(),
                                            .sampling = command.sampling,
                                            .seed = command.seed},
                                           on_token, stop_requested);
    if (command.json) show(json_of(generation, *tokenizer));
    else if (streaming) show(text_for_output(stream.pending()) + (terminal ? "\n" : ""));
    else show(separated(generation, *tokenizer));
    report(generation, prompt.size(), config.context);
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("generate_gpt2", [&] {
        const std::optional<GenerateCommand> command = parse_generate_command(argc, argv);
        if (!command) return;
        stop_on({SIGINT, SIGTERM});
        simt::select_device();
        check_dtype(command->dtype, simt::device_info());
        if (command->dtype == DType::bf16) generate_texts<bfloat16>(*command);
        else generate_texts<float>(*command);
    });
}
