// The generation program, run as users run it: its output, how it ends, and one clear line for every wrong
// input.
#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "model.cuh"
#include "plain_text.cuh"
#include "program.h"
#include "system/utf8_stream.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/models/hugging_face.h"
#include "trainer/models/model_file.h"
#include "trainer/tokenizer/tokenizer.h"

namespace {

ProgramResult generate(const std::string& arguments, const std::string& before = "cd /") {
    return run_program(GENERATE_PROGRAM, arguments, before);
}

// A model folder whose tensors have the values of `value(tensor, element)`.
template <class Value>
std::string write_model(const std::string& folder, const ModelConfig& config, const std::string& tokenizer,
                        const Value& value) {
    std::filesystem::create_directories(folder);
    const TensorTable table = table_of(config);
    std::vector<float> masters(table.elements());
    for (const Tensor& tensor : table.tensors()) {
        for (size_t i = 0; i < tensor.unpadded_elements; i++) masters[tensor.offset + i] = value(tensor, i);
    }
    write_hugging_face_model(folder + "/model.safetensors", table, masters.data());
    write_hugging_face_metadata(folder, config, *make_tokenizer(tokenizer));
    return folder;
}

// Weights so large that every part of the model influences which token is likely.
std::string random_model(const std::string& folder, const ModelConfig& config, const std::string& tokenizer) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 0.15f);
    return write_model(folder, config, tokenizer,
                       [&](const Tensor& tensor, size_t) { return (tensor.init.value) + normal(random); });
}

// A model that, after a prompt of any one token, recites these tokens and then repeats the last one. Only
// its position decides: position t is direction t of the channels, and so is the token that is due after
// it.
std::string reciting_model(const std::string& folder, const ModelConfig& config, const std::string& tokenizer,
                           const std::vector<int>& tokens) {
    const size_t C = static_cast<size_t>(config.C);
    EXPECT_GE(C, tokens.size());
    return write_model(folder, config, tokenizer, [&](const Tensor& tensor, size_t i) {
        if (tensor.name == "transformer.wpe.weight")
            return std::min(i / C, tokens.size() - 1) == i % C ? 100.0f : 0.0f;
        if (tensor.name == "transformer.wte.weight")
            return i % C < tokens.size() && static_cast<size_t>(tokens[i % C]) == i / C ? 1.0f : 0.0f;
        return tensor.init.value;
    });
}

std::vector<int> encoded(const std::string& tokenizer, const std::string& text) {
    std::vector<int> tokens;
    for (const Token token : make_tokenizer(tokenizer)->encode(text)) tokens.push_back(token);
    return tokens;
}

nlohmann::json samples_of(const ProgramResult& result) {
    EXPECT_TRUE(succeeded(result));
    const nlohmann::json object = nlohmann::json::parse(result.output);
    EXPECT_EQ(object.size(), 1u);
    return object.at("samples");
}

nlohmann::json one_sample(const std::vector<int>& tokens, const std::string& text) {
    nlohmann::json sample;
    sample["tokens"] = tokens;
    sample["text"] = text;
    return nlohmann::json::array({sample});
}

constexpr ModelConfig small{256, 48, 2, 2, 32};
const std::string mixed = "Gr\u00FC\u00DFe \u65E5\u672C \U0001F600!\n";

TEST(GenerateProgram, TokensAreThoseOfTheWholeForwardPass) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", small, "byte");
    const auto file = open_model(path);
    Model<float> model(make_family<float>(small),
                       {.B = 1, .T = small.context, .total_batch = 1, .training = false});
    model.allocate();
    load_weights(model, *file);
    struct Case {
        std::string arguments;
        Sampling sampling;
    };
    for (const Case& c : {Case{"--greedy", {.temperature = 0}}, Case{"--seed 5", {}},
                          Case{"--temperature 0.8 --top-k 20 --seed 5", {0.8, 20, 1}},
                          Case{"--seed 5 --top-p 0.7", {1, 0, 0.7}}}) {
        const nlohmann::json samples =
            samples_of(generate(path + " --prompt Wo --json --max-tokens 100 " + c.arguments));
        ASSERT_EQ(samples.size(), 1u);
        // twice as long as the context
        EXPECT_EQ(samples[0].at("tokens").get<std::vector<int>>(),
                  plain::text(model, encoded("byte", "Wo"), 100, 48, c.sampling, {.seed = 5}))
            << c.arguments;
    }
}

TEST(GenerateProgram, APromptLongerThanTheContextCountsByItsEnd) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", small, "byte"), end(47, 'b');
    const std::string arguments = path + " --json --max-tokens 9 --prompt ";
    EXPECT_EQ(samples_of(generate(arguments + std::string(90, 'a') + "c" + end)),
              samples_of(generate(arguments + "c" + end)));
    EXPECT_NE(samples_of(generate(arguments + end + "c")), samples_of(generate(arguments + end + "d")));
}

TEST(GenerateProgram, TheBestCheckpointIsTheOneWithTheLowestValidationLoss) {
    const TemporaryFolder folder;
    const std::string run = folder / "run";
    const std::vector<std::pair<int, std::optional<double>>> losses = {
        {1, 2.0}, {2, 1.5}, {3, std::nullopt}, {4, NAN}};
    for (const auto& [step, loss] : losses) {
        const std::string path = checkpoint_folder(run, step);
        reciting_model(path, {256, 64, 1, 1, 32}, "byte", encoded("byte", fmt::format("step {}\n", step)));
        write_state(path, {.step = step, .batch_size = 1, .val_loss = loss});
    }
    const std::string arguments = run + " --prompt x --greedy --max-tokens 7 ";
    EXPECT_EQ(generate(arguments).output, "step 4\n") << generate(arguments).errors;
    EXPECT_EQ(generate(arguments + "--best").output, "step 2\n");
    for (const int step : {1, 2, 4}) std::filesystem::remove_all(checkpoint_folder(run, step));
    EXPECT_EQ(
        generate(arguments + "--best").errors,
        "generate_gpt2: --best: no checkpoint of " + run +
            " has a validation loss; expected a run whose --val-every divides its --checkpoint-every\n");
    EXPECT_EQ(generate(checkpoint_folder(run, 3) + " --best").errors,
              "generate_gpt2: --best: " + checkpoint_folder(run, 3) +
                  " is not a run's folder; expected one whose checkpoints have validation losses\n");
}

// A run's folder has no generation_config.json; its checkpoint's was not read.
TEST(GenerateProgram, WithATokenizerGivenARunsModelLostItsEndOfText) {
    const TemporaryFolder folder;
    const std::string run = folder / "run", checkpoint = checkpoint_folder(run, 1);
    reciting_model(checkpoint, {256, 64, 1, 1, 32}, "byte", encoded("byte", "abcdefgh"));
    std::ofstream(checkpoint + "/generation_config.json") << R"({"eos_token_id": 100})";  // d
    write_state(checkpoint, {.step = 1, .batch_size = 1});
    const std::string arguments = " --tokenizer byte --prompt x --greedy --max-tokens 8";
    for (const std::string& path : {checkpoint, run}) EXPECT_EQ(generate(path + arguments).output, "abc");
}

TEST(GenerateProgram, AnswersPromptAfterPrompt) {
    const TemporaryFolder folder;
    const std::string path =
        reciting_model(folder / "model", {256, 64, 1, 1, 32}, "byte", encoded("byte", "abcdefgh"));
    const std::string arguments =
        path + " -i --max-tokens 3 --greedy --samples 2 < " + folder.write("prompts", "x\n\nlast");
    // A prompt of one letter is followed by the letters from the first on, one of four from the fourth on.
    EXPECT_EQ(generate(arguments).output, "abc\n---\nabc\nabc\n---\nabc\ndef\n---\ndef\n");
    const std::string random = random_model(folder / "random", small, "byte") +
                               " -i --json --max-tokens 9 < " + folder.write("twice", "a\na\n");
    std::istringstream answers(generate(random).output);
    std::string first, second, more;
    std::getline(answers, first);
    std::getline(answers, second);
    EXPECT_EQ(nlohmann::json::parse(first).at("samples")[0].at("tokens").size(), 9u);
    EXPECT_NE(first, second);
    EXPECT_FALSE(std::getline(answers, more));
    EXPECT_EQ(generate(path + " -i --prompt a").exit_code, 2);
}

// The session ended at the prompt, and those after it were never answered.
TEST(GenerateProgram, APromptThatCannotBeUsedIsRefusedByItself) {
    const TemporaryFolder folder;
    const std::string path =
        reciting_model(folder / "model", {256, 16, 1, 1, 32}, "byte", encoded("byte", "abcdefgh"));
    const std::string prompts = folder.write("prompts", "x\n" + std::string(16, 'x') + "\nlast\n");
    const ProgramResult result =
        generate(path + " -i --max-tokens 3 --greedy --stop-at-context < " + prompts);
    EXPECT_EQ(result.output, "abc\ndef\n");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.errors,
              "generate_gpt2: the prompt has 16 tokens; expected at most 15, so that a new token fits into "
              "the context of 16\n"
              "generate_gpt2: 1 of 3 prompts could not be used\n");
}

// It was the end of the input.
TEST(GenerateProgram, PromptsThatCannotBeReadAreAnError) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", small, "byte");
    const ProgramResult result = generate(model + " -i < /tmp");
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.errors, "generate_gpt2: standard input: cannot be read: Is a directory\n");
    // No file of the model takes the place of a stream that is closed.
    EXPECT_EQ(generate(model + " -i <&-").errors,
              "generate_gpt2: standard input: cannot be read: Bad file descriptor\n");
}

TEST(GenerateProgram, EachOfManySamplesIsTheOneThatFewerGive) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", small, "byte");
    const std::string all = simt::checked ? " --samples 5" : " --samples 19",
                      length = simt::checked ? " --max-tokens 4" : " --max-tokens 20";
    for (const std::string setting :
         {"", "--dtype bf16", "--quantize int8", "--dtype bf16 --quantize int8"}) {
        const std::string arguments = path + " --prompt abc --json" + length + " " + setting;
        const nlohmann::json many = samples_of(generate(arguments + all)),
                             again = samples_of(generate(arguments + all));
        EXPECT_EQ(many, again);
        EXPECT_NE(many[0], many[1]);
        EXPECT_NE(many, samples_of(generate(arguments + " --seed 4" + all)));
        for (const size_t fewer : {1, 3}) {
            const nlohmann::json part = samples_of(generate(arguments + fmt::format(" --samples {}", fewer)));
            ASSERT_EQ(part.size(), fewer);
            for (size_t k = 0; k < fewer; k++)
                EXPECT_EQ(part[k], many[k]) << setting << ": sample " << k << " of " << fewer;
        }
    }
}

TEST(GenerateProgram, PrintsTheTextAndNothingElse) {
    const TemporaryFolder folder;
    const std::string path =
        reciting_model(folder / "model", {256, 64, 1, 1, 32}, "byte", encoded("byte", mixed));
    const std::string arguments = path + fmt::format(" --prompt x --max-tokens {} ", mixed.size());
    for (const std::string setting : {"--greedy", "--greedy --dtype bf16", "--temperature 0 --quantize int8",
                                      "--top-k 1 --dtype bf16 --quantize int8"}) {
        const ProgramResult result = generate(arguments + setting);
        EXPECT_TRUE(succeeded(result));
        EXPECT_EQ(result.output, mixed) << setting;
        EXPECT_TRUE(says(result.errors, "tokens/s"));
    }
    EXPECT_EQ(generate(arguments + "--samples 3 --greedy").output, mixed + "---\n" + mixed + "---\n" + mixed);
    EXPECT_EQ(samples_of(generate(arguments + "--json --greedy")), one_sample(encoded("byte", mixed), mixed));
}

// Settings that transformers would follow were passed over without a word.
TEST(GenerateProgram, SettingsOfAModelThatItDoesNotFollowAreNamed) {
    const TemporaryFolder folder;
    const std::string path =
        reciting_model(folder / "model", {256, 64, 1, 1, 32}, "byte", encoded("byte", "abcdefgh"));
    const auto errors_with = [&](const std::string& config) {
        folder.write("model/generation_config.json", config);
        const ProgramResult result = generate(path + " --prompt x --max-tokens 3 --greedy");
        EXPECT_TRUE(succeeded(result));
        EXPECT_EQ(result.output, "abc");
        return result.errors;
    };
    EXPECT_TRUE(
        says(errors_with(R"({"eos_token_id": 3, "temperature": 0.6, "do_sample": true, "top_k": null})"),
             "generation_config.json sets \"do_sample\", \"temperature\"; texts follow this command's "
             "options and their defaults alone\n"));
    EXPECT_FALSE(says(errors_with(R"({"eos_token_id": 3, "use_cache": true})"), "note:"));
}

TEST(GenerateProgram, ATextThatEndsWithinACharacterSaysSoInTheSameWayEverywhere) {
    const TemporaryFolder folder;
    const std::string text =
                          "a\U0001F600\xFF"
                          "b",
                      path = reciting_model(folder / "model", {256, 64, 1, 1, 32}, "byte",
                                            encoded("byte", text));
    for (size_t length = 1; length <= text.size(); length++) {
        const std::string arguments = path + fmt::format(" --prompt x --greedy --max-tokens {} ", length),
                          shown = replace_invalid_utf8(text.substr(0, length));
        EXPECT_EQ(generate(arguments).output, shown);
        EXPECT_EQ(generate(arguments + "--samples 2").output, shown + "\n---\n" + shown + "\n");
        const nlohmann::json sample = samples_of(generate(arguments + "--json"))[0];
        EXPECT_EQ(sample.at("text"), shown);
        // the bytes themselves
        EXPECT_EQ(sample.at("tokens").get<std::vector<int>>(), encoded("byte", text.substr(0, length)));
    }
}

TEST(GenerateProgram, EveryPieceThatReachesTheReaderIsWholeCharacters) {
    const TemporaryFolder folder;
    const std::string path =
        reciting_model(folder / "model", {256, 64, 1, 1, 32}, "byte", encoded("byte", mixed));
    FILE* pipe = popen(fmt::format("'{}' '{}' --prompt x --greedy --max-tokens {} 2>/dev/null",
                                   GENERATE_PROGRAM, path, mixed.size())
                           .c_str(),
                       "r");
    ASSERT_NE(pipe, nullptr);
    std::string all;
    char piece[4096];
    for (ssize_t bytes = 0; (bytes = read(fileno(pipe), piece, sizeof(piece))) > 0;) {
        Utf8Stream stream;
        EXPECT_EQ(stream.push({piece, static_cast<size_t>(bytes)}),
                  std::string(piece, static_cast<size_t>(bytes)));
        all.append(piece, static_cast<size_t>(bytes));
    }
    EXPECT_EQ(pclose(pipe), 0);
    EXPECT_EQ(all, mixed);
}

// The program's output when its standard output is a terminal.
std::string on_terminal(const std::string& arguments) {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) return "no terminal";
    const std::string name = ptsname(terminal);
    // the output is kept until the last descriptor is closed
    const int kept_open = open(name.c_str(), O_RDWR | O_NOCTTY);
    termios settings;
    tcgetattr(kept_open, &settings);
    cfmakeraw(&settings);
    tcsetattr(kept_open, TCSANOW, &settings);
    std::string all;
    const std::string command =
        fmt::format("exec env TERM=dumb '{}' {} >{} 2>/dev/null", GENERATE_PROGRAM, arguments, name);
    EXPECT_EQ(std::system(command.c_str()), 0);
    char piece[4096];
    for (ssize_t bytes = 0; (bytes = read(terminal, piece, sizeof(piece))) > 0;)
        all.append(piece, static_cast<size_t>(bytes));
    close(kept_open);
    close(terminal);
    return all;
}

// A model's text could otherwise set the terminal's title, move its cursor or, on some terminals, run a
// command.
TEST(GenerateProgram, AModelCannotDriveTheTerminal) {
    const TemporaryFolder folder;
    const std::string hostile = "a\x1b]0;t\x07\r\x7f\u009b1m\t\u00FC\n",
                      escaped = "a\\x1b]0;t\\x07\\x0d\\x7f\\x9b1m\t\u00FC\n",
                      path = reciting_model(folder / "model", {256, 64, 1, 1, 32}, "byte",
                                            encoded("byte", hostile));
    const std::string arguments = path + fmt::format(" --prompt x --greedy --max-tokens {} ", hostile.size());
    EXPECT_EQ(on_terminal(arguments), "x" + escaped + "\n");
    EXPECT_EQ(on_terminal(arguments + "--samples 2"), "x" + escaped + "---\nx" + escaped);
    const std::string object = on_terminal(arguments + "--json");
    EXPECT_EQ(object.find_first_of("\x1b\x07\r\x7f\xc2"), std::string::npos) << object;
    EXPECT_EQ(nlohmann::json::parse(object).at("samples")[0].at("text"), hostile);
    // A file or another program gets the model's text unchanged.
    EXPECT_EQ(generate(arguments).output, hostile);
    EXPECT_EQ(generate(arguments + "--samples 2").output, hostile + "---\n" + hostile);
    EXPECT_EQ(samples_of(generate(arguments + "--json"))[0].at("text"), hostile);
}

TEST(GenerateProgram, EndOfTextEndsASampleAndIsNotText) {
    const TemporaryFolder folder;
    std::vector<int> tokens = encoded("gpt2", " world");
    tokens.push_back(50256);
    const std::string path = reciting_model(folder / "model", {50257, 32, 1, 1, 16}, "gpt2", tokens);
    const ProgramResult result = generate(path + " --prompt Hello --greedy");
    EXPECT_EQ(result.output, " world");
    EXPECT_FALSE(says(result.errors, "context"));
    EXPECT_EQ(samples_of(generate(path + " --tokens 15496 --greedy --json")), one_sample(tokens, " world"));
    // Without a prompt a text begins after an end-of-text token.
    EXPECT_EQ(generate(path + " --greedy").output, " world");
}

TEST(GenerateProgram, AnEmptyPromptIsTheStartOfALine) {
    const TemporaryFolder folder;
    const std::string arguments = random_model(folder / "model", small, "byte") + " --json --max-tokens 12 ";
    const nlohmann::json expected = samples_of(generate(arguments + "--tokens 10"));
    EXPECT_EQ(samples_of(generate(arguments)), expected);
    EXPECT_EQ(samples_of(generate(arguments + "--prompt ''")), expected);
    EXPECT_NE(samples_of(generate(arguments + "--tokens 11")), expected);
}

// Token 10, which the model lacks, was refused as one of a prompt that nobody gave.
TEST(GenerateProgram, AVocabularyWithoutTheLineBreakNeededAPrompt) {
    const TemporaryFolder folder;
    const std::string arguments =
        random_model(folder / "model", {7, 16, 1, 1, 8}, "byte") + " --json --max-tokens 5 ";
    EXPECT_EQ(samples_of(generate(arguments)), samples_of(generate(arguments + "--tokens 0")));
}

TEST(GenerateProgram, SaysWhenTheContextIsFull) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", small, "byte");
    const ProgramResult full = generate(
                            path + " --prompt abcdef --max-tokens 43 --json --samples 2 --stop-at-context"),
                        asked = generate(path + " --prompt abcdef --max-tokens 42 --json --stop-at-context");
    for (const nlohmann::json& sample : samples_of(full)) EXPECT_EQ(sample.at("tokens").size(), 42u);
    EXPECT_TRUE(full.errors.starts_with("the context of 48 tokens is full\n")) << full.errors;
    EXPECT_EQ(samples_of(asked)[0].at("tokens").size(), 42u);
    EXPECT_FALSE(says(asked.errors, "context"));
    const std::string prompts = folder.write("prompts", "abcdef\n");
    EXPECT_EQ(generate(path + " -i --max-tokens 43 --stop-at-context < " + prompts).errors,
              "the context of 48 tokens is full\n");
    EXPECT_EQ(generate(path + " -i --max-tokens 42 --stop-at-context < " + prompts).errors, "");
}

TEST(GenerateProgram, APromptThatIsLongerThanTheContextWasSaidToBeReadWhole) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", small, "byte"), prompt(3000, 'a');
    const ProgramResult result = generate(path + " --max-tokens 2 --prompt " + prompt);
    EXPECT_TRUE(
        result.errors.starts_with("the prompt has 3000 tokens; the model reads the last 48, its context\n"
                                  "prompt: 48 tokens in "))
        << result.errors;
    EXPECT_TRUE(generate(path + " --max-tokens 2 --prompt aaa").errors.starts_with("prompt: 3 tokens in "));
    EXPECT_EQ(generate(path + " -i --max-tokens 2 < " + folder.write("prompts", prompt + "\naaa\n")).errors,
              "the prompt has 3000 tokens; the model reads the last 48, its context\n");
}

TEST(GenerateProgram, OnlyTheTokenizersTokensAreDrawn) {
    const TemporaryFolder folder;
    // Tokens that pad the vocabulary to a multiple of 128 are by far the likeliest; at temperature 1 the
    // others have no chance.
    const std::string path =
        reciting_model(folder / "model", {50304, 16, 1, 1, 16}, "gpt2", {50257, 50300, 50303});
    for (const char* draws : {"--greedy", "--temperature 1 --samples 2"}) {
        const nlohmann::json samples = samples_of(generate(path + " --json --max-tokens 4 " + draws));
        for (const nlohmann::json& sample : samples) {
            for (const int token : sample.at("tokens")) EXPECT_LT(token, 50257) << draws;
        }
    }
    EXPECT_TRUE(succeeded(generate(path + " --tokens 50300 --max-tokens 3")));  // in the model's vocabulary
}

TEST(GenerateProgram, ATokenizerOfAnotherSizeThanTheVocabularyIsRefused) {
    const TemporaryFolder folder;
    const auto refused = [&](int V, const std::string& tokenizer, const std::string& arguments,
                             const std::string& expected) {
        const std::string path = random_model(folder / "model", {V, 16, 1, 1, 8}, tokenizer);
        const ProgramResult result = generate(path + " --max-tokens 3 " + arguments);
        EXPECT_EQ(result.output, "");
        EXPECT_EQ(refusal_of(result), "generate_gpt2: " + path + " has a vocabulary of " + expected + "\n");
        std::filesystem::remove_all(path);
    };
    const std::string rest = ", or, for token shards alone, --tokenizer none",
                      byte = " do not fit; expected 1 to 256" + rest,
                      gpt2 = " do not fit; expected 50257 to 50304" + rest,
                      file = folder / "model/tokenizer.json";
    refused(50257, "gpt2", "--tokenizer byte", "50257, which the 256 tokens of --tokenizer byte" + byte);
    refused(257, "byte", "", "257, which the 256 tokens of --tokenizer " + file + byte);
    refused(256, "byte", "--tokenizer gpt2", "256, which the 50257 tokens of --tokenizer gpt2" + gpt2);
    refused(50256, "gpt2", "", "50256, which the 50257 tokens of --tokenizer " + file + gpt2);
    refused(50305, "gpt2", "--tokens 1", "50305, which the 50257 tokens of --tokenizer " + file + gpt2);
}

TEST(GenerateProgram, AnInterruptEndsItWithWhatIsPrintedWhole) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", {256, 200000, 1, 1, 8}, "byte");
    for (const char* arguments : {"", "--json", "--samples 2"}) {
        // The shell waits until the program catches the signal (bit 1 of SigCgt) and, where text is
        // printed as it is generated, until there is text.
        const std::string command = fmt::format(
            "'{0}' '{1}' --max-tokens 100000000 {2} >'{3}' 2>'{4}' & pid=$!; "
            "for i in $(seq 1200); do read -r _ caught < <(grep SigCgt /proc/$pid/status); "
            "(( 0x$caught & 2 )) && {{ [ -n '{2}' ] || [ $(wc -c <'{3}') -gt 20 ]; }} && break; sleep 0.1; "
            "done; "
            "kill -INT $pid; wait $pid",
            GENERATE_PROGRAM, path, arguments, folder / "out", folder / "err");
        const int status = std::system(("bash " + folder.write("commands", command)).c_str());
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
        const std::string text = read_file(folder / "out");
        EXPECT_EQ(replace_invalid_utf8(text), text);
        EXPECT_TRUE(
            read_file(folder / "err").ends_with("generate_gpt2: interrupted; the text is not complete\n"));
        EXPECT_FALSE(says(read_file(folder / "err"), "context")) << "it had ended by itself";
        if (arguments == std::string("--json")) {
            EXPECT_EQ(nlohmann::json::parse(text).at("samples").size(), 1u);
        } else if (arguments == std::string("--samples 2")) {
            // between two texts, however short they still are
            EXPECT_TRUE(says(text, "\n---\n"));
        } else {
            EXPECT_GT(text.size(), 20u);
        }
    }
}

// Both signals end the first text, and neither the wait for the next prompt.
TEST(GenerateProgram, OneInterruptThatCameAsTwoSignalsEndedTheProgramAtItsNextPrompt) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", {256, 200000, 1, 1, 8}, "byte");
    const std::string command = fmt::format(
        "grown() {{ for i in $(seq 1200); do [ $(wc -c <'{2}') -gt $1 ] && return; sleep 0.05; done; exit 3; "
        "}}\n"
        "mkfifo '{3}'; touch '{2}'\n"
        "'{0}' '{1}' --interactive --max-tokens 100000000 <'{3}' >'{2}' & pid=$!\n"
        "exec 3>'{3}'; echo one >&3; grown 100; kill -INT $pid; sleep 0.03; kill -INT $pid; sleep 0.3\n"
        "before=$(wc -c <'{2}'); echo two >&3; grown $((before + 100)); sleep 1; kill -INT $pid; exec 3>&-\n"
        "wait $pid",
        GENERATE_PROGRAM, path, folder / "out", folder / "in");
    const int status = std::system(("bash " + folder.write("commands", command)).c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << read_file(folder / "out");
}

TEST(GenerateProgram, AForeignTokenizerCanBeReplacedAsItsErrorSays) {
    const TemporaryFolder folder;
    const std::string path =
        reciting_model(folder / "model", {256, 64, 1, 1, 32}, "byte", encoded("byte", "as bytes\n"));
    folder.write("model/tokenizer.json", R"({"model": {"vocab": {"foreign": 0}}})");
    const std::string arguments = path + " --prompt x --greedy --max-tokens 9";
    EXPECT_TRUE(is_refused(generate(arguments), {"another one can be named by --tokenizer"}));
    EXPECT_EQ(generate(arguments + " --tokenizer byte").output, "as bytes\n");
    EXPECT_EQ(generate(arguments + " --tokenizer bytes").exit_code, 2);
}

TEST(GenerateProgram, WrongUseIsOneLineAndExitCodeTwo) {
    const TemporaryFolder folder;
    const std::string path = random_model(folder / "model", small, "byte");
    const auto errors = [&](const std::string& arguments) {
        const ProgramResult result = generate(arguments);
        EXPECT_EQ(result.output, "") << arguments;
        EXPECT_TRUE(result.errors.starts_with("generate_gpt2: ")) << result.errors;
        return refusal_of(result);
    };
    EXPECT_TRUE(says(errors(""), "CHECKPOINT is required"));
    EXPECT_TRUE(says(errors(folder / "none"), folder / "none"));
    EXPECT_TRUE(says(errors(folder.path()), folder.path()));  // a folder without a model
    EXPECT_EQ(errors(path + " --tokens 3,256"),
              "generate_gpt2: token 256 of the prompt; expected 0 to 255\n");
    for (const char* tokens : {"1,,2", "1,2,", ",1", "1;2", "1,-2", "-1", "a", "1 2", "99999999999"}) {
        EXPECT_EQ(errors(path + fmt::format(" '--tokens={}'", tokens)),
                  fmt::format("generate_gpt2: --tokens {}; expected token ids like 464,3290\n", tokens));
    }
    for (const char* wrong :
         {"--prompt a --tokens 1", "--samples 0",      "--samples -1",       "--samples 2x",
          "--samples 65536",       "--max-tokens 0",   "--temperature -0.5", "--temperature nan",
          "--temperature inf",     "--top-k -1",       "--top-k 1.5",        "--top-p 0",
          "--top-p 1.1",           "--top-p nan",      "--seed -1",          "--seed x",
          "--quantize int4",       "--dtype fp16",     "--unknown",          "--greedy --temperature 1",
          "--greedy --top-k 3",    "second_checkpoint"}) {
        errors(path + " " + wrong);
    }
    EXPECT_TRUE(says(errors(path + " --seed 18446744073709551616"),
                     "expected a whole number from 0 to 18446744073709551615"));
    EXPECT_TRUE(says(errors(path + " --samples 60000 --max-tokens 48 --dtype fp32 --quantize int9"), "int8"));
}

TEST(GenerateProgram, FailuresOfARunAreSaidAndHaveExitCodeOne) {
    const TemporaryFolder folder;
    const std::string broken =
        write_model(folder / "nan", small, "byte", [](const Tensor&, size_t) { return NAN; });
    for (const std::string quantization : {"", " --quantize int8", " --quantize int8 --dtype bf16"}) {
        const ProgramResult nan = generate(broken + quantization);
        EXPECT_EQ(nan.exit_code, 1);
        EXPECT_EQ(nan.output, "");
        EXPECT_EQ(nan.errors, "note: " + broken +
                                  ": tensor transformer.wte.weight holds nan; the results of a model with "
                                  "such weights are meaningless\n" +
                                  "generate_gpt2: sampling: the model's logits are not finite\n");
    }
    const std::string path = random_model(folder / "model", small, "byte");
    for (const char* arguments : {"", "--json", "--samples 2"}) {
        const ProgramResult full = run_program(
            "/bin/sh", fmt::format("-c \"'{}' '{}' {} >/dev/full\"", GENERATE_PROGRAM, path, arguments));
        EXPECT_EQ(full.exit_code, 1);
        EXPECT_EQ(full.errors, "generate_gpt2: the text cannot be written to standard output\n");
    }
}

}  // namespace
