// generate_gpt2.cu: generates text with a trained model.
//   prompt -> tokens -> Decoder::prefill, then for every token: Decoder::draw, show, Decoder::step
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "system/error.h"
#include "system/line_editor.h"
#include "system/print_line.h"
#include "system/printable.h"
#include "system/run_main.h"
#include "system/stop_signal.h"
#include "system/utf8_stream.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/inference/generate.h"
#include "trainer/inference/generator.h"
#include "trainer/models/families.h"
#include "trainer/models/model_file.h"
#include "trainer/run/generate_options.h"
#include "trainer/run/memory_fit.h"
#include "trainer/tokenizer/special_ids.h"
#include "trainer/tokenizer/tokenizer.h"

namespace {

const bool terminal = isatty(STDOUT_FILENO) != 0;

// A terminal obeys control characters, so those in a model's text are escaped there, but not in a file.
std::string text_for_output(std::string_view bytes) {
    return terminal ? printable(bytes, "\n\t") : replace_invalid_utf8(bytes);
}

void show(const std::string& text) { write_output(text, "the text"); }

bool shows_colour() {
    const char *term = std::getenv("TERM"), *no_colour = std::getenv("NO_COLOR");
    return terminal && term && *term && std::string_view(term) != "dumb" && (!no_colour || !*no_colour);
}

// The tokens of a prompt, at least one.
std::vector<int> prompt_of(const std::string& text, std::vector<int> tokens, Tokenizer& tokenizer,
                           const ModelConfig& config) {
    if (tokens.empty()) {
        for (const Token token : tokenizer.encode_prompt(text)) tokens.push_back(token);
    }
    if (tokens.empty()) tokens = {tokenizer.first_token()};
    for (const int token : tokens)
        CHECK(token < config.V, "token {} of the prompt; expected 0 to {}", token, config.V - 1);
    return tokens;
}

// The bytes of the tokens, without those that end a text.
std::string text_of(const std::vector<int>& tokens, const Tokenizer& tokenizer) {
    std::string bytes;
    for (const int token : tokens) {
        if (!tokenizer.ends_text(token)) bytes += tokenizer.token_bytes(token);
    }
    return bytes;
}

std::string json_of(const Generation& generation, const Tokenizer& tokenizer) {
    nlohmann::ordered_json samples = nlohmann::ordered_json::array();
    for (const GeneratedText& text : generation.texts)
        samples.push_back(
            {{"tokens", text.tokens}, {"text", replace_invalid_utf8(text_of(text.tokens, tokenizer))}});
    // On a terminal, characters from U+007F on are escaped, because some are commands.
    return nlohmann::ordered_json{{"samples", samples}}.dump(-1, ' ', terminal) + "\n";
}

// Texts are generated together but shown one after another: the first one while it grows, each later one
// after those before it have ended.
class TextPrinter {
public:
    // echo: printed before every text, dimmed if the terminal can; "" for none. whole_lines: every text
    // ends with a line break.
    TextPrinter(const Tokenizer& tokenizer, int samples, const std::string& echo, bool whole_lines)
        : tokenizer_(tokenizer),
          whole_lines_(whole_lines),
          echo_(echo.empty() || !shows_colour() ? text_for_output(echo)
                                                : "\x1b[2m" + text_for_output(echo) + "\x1b[0m") {
        waiting_.resize(static_cast<size_t>(samples));
        ended_.resize(waiting_.size());
        show(echo_);
    }

    void add(int sample, int token) {
        const size_t k = static_cast<size_t>(sample);
        if (tokenizer_.ends_text(token)) ended_[k] = true;
        else waiting_[k] += tokenizer_.token_bytes(token);
        if (k == shown_) go_on();
    }
    // Called after the last token.
    void end() {
        ended_.assign(ended_.size(), true);
        go_on();
        close();
    }

private:
    void go_on() {
        print(stream_.push(std::exchange(waiting_[shown_], {})));
        while (ended_[shown_] && shown_ + 1 < waiting_.size()) {
            close();
            show("---\n" + echo_);
            print(stream_.push(std::exchange(waiting_[++shown_], {})));
        }
    }
    void print(const std::string& bytes) {
        const std::string text = text_for_output(bytes);
        show(text);
        if (!text.empty()) at_line_begin_ = text.back() == '\n';
    }
    // A single text that goes to a file is written without an added line break.
    void close() {
        print(stream_.pending());
        stream_ = {};
        if (whole_lines_ ? !at_line_begin_ : terminal) show("\n");
        at_line_begin_ = false;
    }

    const Tokenizer& tokenizer_;
    const bool whole_lines_;
    const std::string echo_;
    std::vector<std::string> waiting_;  // each text's bytes that are not shown yet
    std::vector<bool> ended_;
    size_t shown_ = 0;  // the text that is being shown
    Utf8Stream stream_;
    bool at_line_begin_ = false;
};

bool any_ended_by(Ending ending, const Generation& generation) {
    return std::any_of(generation.texts.begin(), generation.texts.end(),
                       [&](const GeneratedText& text) { return text.ending == ending; });
}

// Only the end of a prompt that is longer than the context is read.
size_t tokens_read(size_t prompt_tokens, int context) {
    return std::min(prompt_tokens, static_cast<size_t>(context));
}

void say_what_context_cut(const Generation& generation, size_t prompt_tokens, int context) {
    if (any_ended_by(Ending::context, generation))
        print_line(stderr, fmt::format("the context of {} tokens is full", context));
    const size_t read = tokens_read(prompt_tokens, context);
    if (read < prompt_tokens)
        print_line(stderr, fmt::format("the prompt has {} tokens; the model reads the last {}, its context",
                                       prompt_tokens, read));
}

void say_speed(const Generation& generation, size_t tokens_of_prompt) {
    const auto rate = [](size_t tokens, double seconds) {
        return fmt::format("{} tokens in {:.3f} s ({:.1f} tokens/s)", tokens, seconds,
                           static_cast<double>(tokens) / std::max(seconds, 1e-9));
    };
    print_line(stderr,
               fmt::format("prompt: {}; generated: {}", rate(tokens_of_prompt, generation.prefill_seconds),
                           rate(generation.decoded_tokens, generation.decode_seconds)));
}

// Generates and shows the texts after a prompt, and says what the context cut. turn: part of the random key,
// so that repeating a prompt gives another text.
template <class T>
Generation continue_text(Decoder<T>& decoder, const std::vector<int>& prompt, const GenerateCommand& command,
                         const Tokenizer& tokenizer, uint64_t turn) {
    const ModelConfig& config = decoder.config();
    const bool echoed = terminal && !command.json && !command.interactive;
    TextPrinter printer(tokenizer, command.samples, echoed ? text_of(prompt, tokenizer) : "",
                        command.samples > 1 || command.interactive);
    const auto on_token = [&](int sample, int token) {
        if (!command.json) printer.add(sample, token);
    };
    const Generation generation = generate(decoder, prompt,
                                           {.max_tokens = command.max_tokens,
                                            .context = command.stop_at_context ? config.context : INT_MAX,
                                            .vocabulary = std::min(tokenizer.vocab_size(), config.V),
                                            .ends = tokenizer.ends(),
                                            .sampling = command.sampling,
                                            .seed = command.seed,
                                            .step = turn},
                                           on_token, stop_requested);
    if (command.json) show(json_of(generation, tokenizer));
    else printer.end();
    say_what_context_cut(generation, prompt.size(), config.context);
    return generation;
}

// The next line of standard input without its line break; std::nullopt at the end of the input, or if a
// signal asked to stop meanwhile. Error if it cannot be read. unread: what was read of the input and not yet
// returned.
std::optional<std::string> read_prompt(std::string& unread) {
    if (isatty(STDIN_FILENO)) {
        std::fputs("> ", stderr);
        std::fflush(stderr);
    }
    size_t length;
    while ((length = unread.find('\n')) == std::string::npos) {
        char bytes[4096];
        if (!wait_for_input(STDIN_FILENO)) return std::nullopt;
        const ssize_t got = read(STDIN_FILENO, bytes, sizeof(bytes));
        if (got < 0) {
            if (errno == EINTR || errno == EAGAIN) continue;
            throw Error(fmt::format("standard input: cannot be read: {}", std::strerror(errno)));
        }
        if (got == 0) {
            if (unread.empty()) return std::nullopt;
            unread += '\n';  // the last line may lack its line break
        } else {
            unread.append(bytes, static_cast<size_t>(got));
        }
    }
    const std::string_view line = std::string_view(unread).substr(0, length);
    std::string text(line.substr(0, line.find_last_not_of('\r') + 1));
    unread.erase(0, length + 1);
    return text;
}

// A prompt that cannot be used gets a line, and those after it are answered. UsageError at the end if there
// was one in a file, whose answers would else be taken for those of all its prompts.
template <class T>
void answer_prompts(Decoder<T>& decoder, const GenerateCommand& command, Tokenizer& tokenizer) {
    const std::unique_ptr<LineEditor> editor = make_line_editor("generate_gpt2");
    std::string unread;
    uint64_t turn = 0, refused = 0;
    for (;; turn++) {
        const std::optional<std::string> text = editor ? editor->read() : read_prompt(unread);
        if (!text) break;
        try {
            continue_text(decoder, prompt_of(*text, {}, tokenizer, decoder.config()), command, tokenizer,
                          turn);
        } catch (const UsageError& error) {
            report("generate_gpt2", error);
            refused++;
        }
        if (stop_requested()) wait_for_next_stop();
    }
    if (isatty(STDIN_FILENO)) std::fputs("\n", stderr);
    else CHECK(refused == 0, "{} of {} prompts could not be used", refused, turn);
}

template <class T>
void generate_texts(const GenerateCommand& command) {
    const std::unique_ptr<ModelFile> file =
        open_model(command.checkpoint, command.best ? WhichCheckpoint::best : WhichCheckpoint::newest);
    const ModelConfig& config = file->config();
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer_for(
        file->path(), config.V, command.tokenizer.empty() ? tokenizer_name(*file) : command.tokenizer);
    if (const std::string settings = read_model_ids(file->path()).generation_settings; !settings.empty()) {
        print_line(stderr,
                   fmt::format("note: {}: generation_config.json sets {}; texts follow this command's "
                               "options and their defaults alone",
                               file->path(), settings));
    }
    const std::vector<int> prompt = prompt_of(command.prompt, command.tokens, *tokenizer, config);
    const size_t wanted =
        command.interactive ? SIZE_MAX : prompt.size() + static_cast<size_t>(command.max_tokens);
    const int cached = static_cast<int>(std::min(wanted, static_cast<size_t>(config.context)));

    Generator<T> generator(make_family<T>(config),
                           {.samples = command.samples, .max_tokens = cached, .int8 = command.int8});
    check_fits(generator.memory_plan(), "the model with its cache",
               "fewer --samples or --max-tokens, or --quantize int8");
    generator.allocate();
    generator.load([&](const auto&... rows) { file->values(rows...); });
    Decoder<T>& decoder = generator.decoder();
    if (command.interactive) return answer_prompts(decoder, command, *tokenizer);
    const Generation generation = continue_text(decoder, prompt, command, *tokenizer, 0);
    say_speed(generation, tokens_read(prompt.size(), config.context));
    if (any_ended_by(Ending::stopped, generation)) throw Error("interrupted; the text is not complete");
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
