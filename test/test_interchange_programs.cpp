// Models in and out of the programs: convert, and train_gpt2 --init-from, run as users run them.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>

#include "metrics_lines.h"
#include "model_weights.h"
#include "program.h"
#include "system/data_directory.h"
#include "trainer/formats/safetensors.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ProgramResult convert(const std::string& arguments) { return run_program(CONVERT_PROGRAM, arguments); }

// Trained models, so that a step from them differs from a step from any other weights.
std::string random_model(const std::string& folder, const ModelConfig& config) {
    fs::create_directories(folder);
    const TensorTable table = table_of(config);
    std::vector<float> masters(table.elements());
    uint32_t state = 1;
    for (const Tensor& t : table.tensors()) {
        for (size_t i = 0; i < t.unpadded_elements; i++) {
            state = state * 1664525 + 1013904223;
            masters[t.offset + i] = (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 0.3f + t.init.value;
        }
    }
    write_hugging_face_model(folder + "/model.safetensors", table, masters.data());
    write_hugging_face_metadata(folder, config, *make_tokenizer("byte"));
    return folder;
}

TEST(ConvertProgram, ToLlmcAndBackIsBitForBit) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", small_config);
    const ProgramResult result = convert(model + " --format llmc-fp32 --out " + folder / "model.bin");
    ASSERT_TRUE(succeeded(result));
    EXPECT_EQ(result.output, fmt::format("{}: {} parameters from {}\n", folder / "model.bin",
                                         table_of(small_config).parameters(), model));
    ASSERT_TRUE(succeeded(convert(folder / "model.bin" + " --format hf --out " + folder / "back")));
    for (const char* file : {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
                             "tokenizer_config.json"})
        EXPECT_EQ(read_file(folder / "back/" + file), read_file(model + "/" + file)) << file;
    // Conversions from bf16 on change nothing.
    ASSERT_TRUE(succeeded(convert(model + " --format llmc-bf16 --out " + folder / "bf16.bin")));
    ASSERT_TRUE(succeeded(convert(folder / "bf16.bin" + " --out " + folder / "from-bf16")));
    ASSERT_TRUE(
        succeeded(convert(folder / "from-bf16" + " --format llmc-bf16 --out " + folder / "bf16-again.bin")));
    EXPECT_EQ(read_file(folder / "bf16.bin"), read_file(folder / "bf16-again.bin"));
    EXPECT_EQ(fs::file_size(folder / "bf16.bin") - 1024, (fs::file_size(folder / "model.bin") - 1024) / 2);
}

TEST(ConvertProgram, WeightsThatAreNotFiniteAreSaid) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", small_config);
    EXPECT_EQ(convert(model + " --format llmc-fp32 --out " + folder / "model.bin").errors, "");
    std::string bytes = read_file(folder / "model.bin");
    const float infinite = INFINITY;
    std::memcpy(bytes.data() + 1024 + 4, &infinite, 4);  // of wte, the first tensor
    const ProgramResult result = convert(folder.write("broken.bin", bytes) + " --out " + folder / "back");
    EXPECT_TRUE(succeeded(result));
    EXPECT_EQ(result.errors, fmt::format("note: {}: tensor transformer.wte.weight holds inf; the results "
                                         "of a model with such weights are meaningless\n",
                                         folder / "broken.bin"));
}

TEST(ConvertProgram, WrongUseIsOneLineAndWritesNothing) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", small_config);
    folder.write("file", "");
    const std::pair<std::string, std::string> cases[] = {
        {model, "--out is required"},
        {folder / "gone" + " --out " + folder / "out", "gone: is not there"},
        {model + " --format gguf --out " + folder / "out", "--format gguf; expected hf|llmc-bf16|llmc-fp32"},
        {model + " --out " + model, "is not empty; choose another folder"},
        {model + " --out " + folder / "file", "file: the folder cannot be made"},
        {model + " --out " + folder / "file/deep", "file/deep: the folder cannot be made"},
        {model + " --tokenizer words --out " + folder / "out", "words"},
        {model + " --tokenizer gpt2 --format llmc-fp32 --out " + folder / "out",
         "--tokenizer needs --format hf"},
        {model + " --tokenizer gpt2 --out " + folder / "out",
         "has a vocabulary of 131, which the 50257 tokens of --tokenizer gpt2 do not fit"},
    };
    for (const auto& [arguments, expected] : cases) {
        const ProgramResult result = convert(arguments);
        EXPECT_TRUE(is_refused(result, {expected})) << arguments;
        EXPECT_TRUE(result.errors.starts_with("convert: ")) << result.errors;
        EXPECT_FALSE(fs::exists(folder / "out"));
    }
}

// It replaced the input, a file of the user, a link, or a FIFO.
TEST(ConvertProgram, AFileOfLlmcReplacesNothing) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", small_config);
    ASSERT_TRUE(succeeded(convert(model + " --format llmc-fp32 --out " + folder / "w.bin")));
    const std::string weights = read_file(folder / "w.bin"), safetensors = model + "/model.safetensors",
                      before = read_file(safetensors);
    folder.write("notes", "mine");
    fs::create_symlink("notes", folder / "link");
    fs::create_symlink("gone", folder / "leads-nowhere");
    ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
    for (const std::string& out : {folder / "w.bin", safetensors, folder / "notes", folder / "link",
                                   folder / "leads-nowhere", folder / "fifo", model}) {
        EXPECT_EQ(refusal_of(convert(folder / "w.bin" + " --format llmc-bf16 --out " + out)),
                  "convert: --out " + out + ": exists already; choose another name, or remove it\n");
    }
    EXPECT_EQ(read_file(folder / "w.bin"), weights);
    EXPECT_EQ(read_file(safetensors), before);
    EXPECT_EQ(read_file(folder / "notes"), "mine");
    EXPECT_TRUE(fs::is_symlink(folder / "link") && fs::is_symlink(folder / "leads-nowhere"));
    EXPECT_TRUE(fs::is_fifo(folder / "fifo"));
    EXPECT_EQ(folder.files().size(), 6U);  // no temporary file, and not what the last link leads to
}

// The number of files and folders in a folder, at any depth.
size_t entries_below(const std::string& folder) {
    const fs::recursive_directory_iterator all(folder);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Sends SIGTERM while convert writes. Its standard error is a full pipe, so it waits at the note about a
// weight that is not finite; this is read, and the conversion goes on, after the signal.
ProgramResult convert_until_signal(const std::string& folder_of_out, std::vector<std::string> arguments) {
    int errors[2];
    EXPECT_EQ(pipe2(errors, O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(errors[1], F_SETFL, O_NONBLOCK), 0);
    while (write(errors[1], "\n", 1) == 1) continue;
    EXPECT_EQ(fcntl(errors[1], F_SETFL, 0), 0);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const pid_t pid = fork();
    if (pid < 0) return {-1, "", "no process"};
    if (pid == 0) {
        dup2(errors[1], STDERR_FILENO);
        execv(pointers[0], pointers.data());
        _exit(127);
    }
    close(errors[1]);
    const auto is_writing_weights = [&] {
        for (const auto& entry : fs::recursive_directory_iterator(folder_of_out)) {
            const std::string name = entry.path().filename();
            if (name.starts_with("model.") && name.find(".tmp-") != std::string::npos) return true;
        }
        return false;
    };
    bool writing = false;
    for (int i = 0; i < 10'000 && !(writing = is_writing_weights()); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(writing);
    EXPECT_EQ(kill(pid, SIGTERM), 0);
    std::string text;
    char some[4096];
    for (ssize_t bytes; (bytes = read(errors[0], some, sizeof(some))) > 0;)
        text.append(some, static_cast<size_t>(bytes));
    close(errors[0]);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, "", text};
}

// It left an incomplete folder or a temporary file.
TEST(ConvertProgram, AnInterruptionLeavesNothing) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", small_config), out = folder / "out";
    ASSERT_TRUE(succeeded(convert(model + " --format llmc-fp32 --out " + folder / "model.bin")));
    std::string bytes = read_file(folder / "model.bin");
    const float infinite = INFINITY;
    std::memcpy(bytes.data() + 1024 + 4, &infinite, 4);  // of wte, the first tensor that is written
    const std::string broken = folder.write("broken.bin", bytes);
    fs::create_directory(out);
    for (const auto& [format, name] :
         {std::pair{"hf", "model.new/deep"}, {"llmc-fp32", "model.bin"}, {"llmc-bf16", "model.bin"}}) {
        const ProgramResult result = convert_until_signal(
            out, {relocated(CONVERT_PROGRAM), broken, "--format", format, "--out", out + "/" + name});
        EXPECT_EQ(result.exit_code, 1) << format;
        EXPECT_TRUE(result.errors.ends_with("\nconvert: interrupted; nothing was written\n")) << format;
        EXPECT_EQ(entries_below(out), 0u) << format;
    }
}

TEST(ConvertProgram, ATokenizerSmallerThanTheVocabularyIsRefused) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", {300, 8, 1, 1, 8});
    EXPECT_EQ(refusal_of(convert(model + " --out " + folder / "out")),
              "convert: " + model + " has a vocabulary of 300, which the 256 tokens of --tokenizer " + model +
                  "/tokenizer.json do not fit; expected 1 to 256, or, for token shards alone, "
                  "--tokenizer none\n");
    EXPECT_FALSE(fs::exists(folder / "out"));
    // it holds no tokenizer
    EXPECT_TRUE(succeeded(convert(model + " --format llmc-fp32 --out " + folder / "model.bin")));
}

TEST(ConvertProgram, AFullDiskLeavesNothingAndTheNextAttemptSucceeds) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", {256, 64, 2, 2, 64});  // 512 KiB of weights
    const auto convert_within = [&](const std::string& limit, const std::string& arguments) {
        return run_program(CONVERT_PROGRAM, model + arguments, "cd /; " + limit);
    };
    fs::create_directory(folder / "empty");
    for (const char* out : {"new", "empty"}) {
        const std::string arguments = std::string(" --out ") + folder / out;
        // 32 or 64 KiB a file, enough for all files but the weights
        const ProgramResult result = convert_within("ulimit -f 64", arguments);
        EXPECT_EQ(result.exit_code, 1);
        EXPECT_EQ(
            result.errors,
            fmt::format("convert: {}/model.safetensors: cannot be written: File too large\n", folder / out));
        EXPECT_EQ(fs::exists(folder / out), std::string(out) == "empty");
        EXPECT_TRUE(!fs::exists(folder / out) || fs::is_empty(folder / out));
        EXPECT_TRUE(succeeded(convert_within("true", arguments)));
    }
    // All folders that it made are removed, and no other.
    for (const std::string& name : {std::string("new/q/b/c/deep"), "new/q/" + std::string(300, 'x')}) {
        EXPECT_NE(convert_within("ulimit -f 64", " --out " + folder / name).exit_code, 0);
        EXPECT_FALSE(fs::exists(folder / "new/q")) << name;
        EXPECT_TRUE(fs::exists(folder / "new"));
    }
    const ProgramResult result =
        convert_within("ulimit -f 64", " --format llmc-fp32 --out " + folder / "model.bin");
    EXPECT_EQ(result.errors,
              fmt::format("convert: {}: cannot be written: File too large\n", folder / "model.bin"));
    EXPECT_EQ(folder.files().size(), 3U);  // model, new, empty
}

ProgramResult train(const std::string& arguments) {
    return run_program(TRAIN_PROGRAM,
                       "--batch-size 2 --steps 1 --warmup 0 --val-every 0 --sample-every 0 " + arguments);
}

TEST(InitFrom, TrainingStartsFromTheFilesWeightsWhateverItsFormat) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", {256, 16, 2, 3, 24});
    ASSERT_TRUE(succeeded(convert(model + " --format llmc-fp32 --out " + folder / "model.bin")));
    std::vector<json> steps;
    for (const std::string& from : {model, folder / "model.bin"}) {
        const std::string run = folder / fmt::format("run{}", steps.size());
        const ProgramResult result = train("--init-from " + from + " --out " + run);
        ASSERT_TRUE(succeeded(result));
        EXPECT_TRUE(says(result.output, "2 layers, 3 heads, 24 channels, context 16, vocabulary 256"));
        steps.push_back(metrics_of(run, "train").at(0));
    }
    EXPECT_EQ(steps[0].at("loss"), steps[1].at("loss"));
    EXPECT_EQ(steps[0].at("grad_norm"), steps[1].at("grad_norm"));
    ASSERT_TRUE(
        succeeded(train("--layers 2 --heads 3 --channels 24 --context 16 --out " + folder / "drawn")));
    EXPECT_GT(std::abs(metrics_of(folder / "drawn", "train").at(0).at("loss").get<double>() -
                       steps[0].at("loss").get<double>()),
              0.05);
}

TEST(InitFrom, AShorterContextTakesTheFirstPositions) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", {256, 16, 1, 1, 8});
    ASSERT_TRUE(succeeded(train("--init-from " + model + " --seq-len 8 --out " + folder / "sequence")));
    ASSERT_TRUE(succeeded(train("--init-from " + model + " --context 8 --out " + folder / "context")));
    EXPECT_EQ(metrics_of(folder / "sequence", "train").at(0).at("loss"),
              metrics_of(folder / "context", "train").at(0).at("loss"));
    EXPECT_EQ(metrics_of(folder / "context", "run").at(0).at("model").at("context"), 8);
}

TEST(InitFrom, ATokenizerOfAnotherSizeThanTheVocabularyIsRefused) {
    const TemporaryFolder folder;
    const std::pair<std::string, std::string> cases[] = {
        {"--init-from " + random_model(folder / "bytes", {256, 16, 1, 1, 8}) + " --tokenizer gpt2",
         "bytes has a vocabulary of 256, which the 50257"},
        {"--init-from " + random_model(folder / "more", {300, 16, 1, 1, 8}),
         "more has a vocabulary of 300, which the 256 tokens of --tokenizer " +
             folder / "more/tokenizer.json"},
        {"--vocab 1000 --tokenizer gpt2",
         "the model has a vocabulary of 1000, which the 50257 tokens of --tokenizer gpt2 do not fit; "
         "expected 50257 to 50304"},
        {"--vocab 1000",
         "tinyshakespeare.txt (without its last tenth): is text, which --tokenizer none cannot tokenize; "
         "expected token shards, or "
         "another --tokenizer"},
        {"--vocab 50257 --tokenizer byte",
         "the model has a vocabulary of 50257, which the 256 tokens of --tokenizer byte do not fit"},
    };
    for (const auto& [arguments, expected] : cases) {
        EXPECT_TRUE(is_refused(train(arguments + " --out " + folder / "run"), {expected})) << arguments;
        EXPECT_FALSE(fs::exists(folder / "run"));
    }
    EXPECT_TRUE(succeeded(
        train("--vocab 50304 --layers 1 --heads 1 --channels 8 --context 16 --out " + folder / "padded")));
}

TEST(InitFrom, ItsShapeIsTheFilesAndNothingElse) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", {256, 16, 1, 1, 8});
    const std::pair<std::string, std::string> cases[] = {
        {"--layers 1", "--layers and --init-from exclude each other; expected only one of them"},
        {"--model gpt2", "--model and --init-from exclude each other"},
        {"--vocab 256", "--vocab and --init-from exclude each other"},
        {"--context 17", "--context 17 is longer than the context of 16 in " + model},
        {"--seq-len 17", "--seq-len 17 is longer than the context of 16"},
    };
    for (const auto& [arguments, expected] : cases) {
        EXPECT_TRUE(is_refused(train("--init-from " + model + " " + arguments + " --out " + folder / "run"),
                               {expected}))
            << arguments;
        EXPECT_FALSE(fs::exists(folder / "run"));
    }
}

// A tokenizer of 600 tokens trained by Hugging Face's tokenizers; 0 ends a text.
constexpr char own_tokenizer[] = PROJECT_ROOT "/test/reference/bpe/plain.json";

std::string shakespeare(size_t bytes) {
    return read_file(data_directory() + "/tinyshakespeare.txt").substr(0, bytes);
}

std::string checkpoint_of(const std::string& run) { return run + "/checkpoints/step_00000001"; }

TEST(OwnTokenizer, TravelsWithTheModel) {
    const TemporaryFolder folder;
    const std::string run = folder / "run", given = folder.write("given.json", read_file(own_tokenizer)),
                      text = folder.write("a.txt", shakespeare(20'000));
    const std::string shape = " --layers 1 --heads 1 --channels 8 --context 32 --train-data " + text;
    ASSERT_TRUE(succeeded(train("--tokenizer " + given + shape + " --out " + run)));
    const json model = metrics_of(run, "run").at(0).at("model");
    EXPECT_EQ(model.at("vocab"), 600);
    // transformers opens the checkpoint with the same tokenizer.
    EXPECT_EQ(read_file(checkpoint_of(run) + "/tokenizer.json"), read_file(given));
    EXPECT_EQ(json::parse(read_file(checkpoint_of(run) + "/tokenizer_config.json")).at("eos_token"),
              "<|endoftext|>");
    EXPECT_EQ(json::parse(read_file(checkpoint_of(run) + "/config.json")).at("eos_token_id"), 0);
    // The run continues without the file that it began with.
    fs::remove(given);
    ASSERT_TRUE(succeeded(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 2")));
    for (const char* other : {"gpt2 --vocab 50257", "byte --vocab 256"}) {
        EXPECT_TRUE(
            is_refused(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 3 --tokenizer " + other),
                       {"belongs to another run: ", "instead of bpe-"}));
    }
    ASSERT_TRUE(succeeded(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 3 --tokenizer " +
                                                         own_tokenizer)));  // the same file by another name
    // Into another folder, and resumed there.
    const std::string converted = folder / "converted";
    ASSERT_TRUE(succeeded(convert(run + " --out " + converted)));
    EXPECT_EQ(read_file(converted + "/tokenizer.json"), read_file(own_tokenizer));
    EXPECT_EQ(read_file(converted + "/tokenizer_config.json"),
              read_file(run + "/checkpoints/step_00000003/tokenizer_config.json"));
    const ProgramResult tuned =
        train("--init-from " + converted + " --train-data " + text + " --out " + folder / "tuned");
    EXPECT_TRUE(succeeded(tuned));
    EXPECT_EQ(read_file(checkpoint_of(folder / "tuned") + "/tokenizer.json"), read_file(own_tokenizer));
    // A checkpoint that has lost its tokenizer.
    for (const auto& entry : fs::directory_iterator(run + "/checkpoints"))
        fs::remove(entry.path() / "tokenizer.json");
    EXPECT_TRUE(says(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 4").errors,
                     "please name it with --tokenizer"));
}

// plain.json with a padding token that it has got later, and a model that stops at one of two tokens.
TEST(OwnTokenizer, EverythingThatItsFolderSaysTravelsWithTheModel) {
    const TemporaryFolder folder;
    const std::string model = random_model(folder / "model", {600, 32, 1, 1, 8});
    const std::map<std::string, std::string> files = {
        {"tokenizer.json", read_file(own_tokenizer)},
        {"tokenizer_config.json",
         R"({"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"})"},
        {"special_tokens_map.json", R"({"pad_token": {"content": "<pad>", "lstrip": true}})"},
        {"chat_template.jinja", "{{ messages }}"},
        {"additional_chat_templates/tool_use.jinja", "{{ tools }}"},
        {"generation_config.json", R"({"eos_token_id": [3, 4], "temperature": 0.5})"}};
    fs::create_directory(model + "/additional_chat_templates");
    for (const auto& [name, text] : files) std::ofstream(model + "/" + name) << text;
    ASSERT_TRUE(succeeded(convert(model + " --out " + folder / "converted")));
    const std::string text = folder.write("a.txt", shakespeare(20'000)), run = folder / "run";
    ASSERT_TRUE(succeeded(train("--init-from " + model + " --train-data " + text + " --out " + run)));
    ASSERT_TRUE(succeeded(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 2")));
    for (const std::string& copy :
         {folder / "converted", checkpoint_of(run), run + "/checkpoints/step_00000002"}) {
        for (const auto& [name, content] : files) EXPECT_EQ(read_file(copy + "/" + name), content) << copy;
        EXPECT_EQ(json::parse(read_file(copy + "/config.json")).at("eos_token_id"), (json{3, 4})) << copy;
    }
    // Any of several tokens ends a text.
    const auto generated = [&](const std::vector<int>& ends) {
        std::ofstream(folder / "converted/generation_config.json") << json{{"eos_token_id", ends}};
        const ProgramResult result =
            run_program(GENERATE_PROGRAM, folder / "converted" + " --prompt the --max-tokens 5 --json");
        return json::parse(result.output).at("samples").at(0).at("tokens").size();
    };
    std::vector<int> all(600);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(generated(all), 1u);
    EXPECT_EQ(generated({600}), 5u);  // a number that the model does not have
    // The model has no row for the padding token, so no text may contain it.
    const std::string padded = folder.write("b.txt", shakespeare(20'000) + " <pad>");
    const ProgramResult refused =
        train("--init-from " + model + " --train-data " + padded + " --out " + folder / "other");
    EXPECT_EQ(run_program(GENERATE_PROGRAM, model + " --prompt '<pad>'").exit_code, 2);
    EXPECT_TRUE(is_refused(refused, {"the added token \"<pad>\" with the number 600"}));
}

TEST(OwnTokenizer, NoneTrainsOnShardsAndWritesNoTokenizer) {
    const TemporaryFolder folder;
    const std::string shards = folder / "shards", run = folder / "run",
                      text = folder.write("a.txt", shakespeare(20'000));
    ASSERT_TRUE(succeeded(run_program(
        TOKENIZE_PROGRAM, std::string("--tokenizer ") + own_tokenizer + " --out " + shards + " " + text)));
    const std::string arguments =
        "--layers 1 --heads 1 --channels 8 --context 32 --vocab 600 --sample-every 1 --sample-tokens 4 "
        "--train-data " +
        shards;
    ASSERT_TRUE(succeeded(
        run_program(TRAIN_PROGRAM, arguments + " --batch-size 2 --steps 1 --val-every 0 --out " + run)));
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
        EXPECT_FALSE(fs::exists(checkpoint_of(run) + "/" + name)) << name;
    const std::string sample = metrics_of(run, "sample").at(0).at("text");
    EXPECT_EQ(std::count(sample.begin(), sample.end(), ' '), 4) << sample;
    EXPECT_EQ(sample.find_first_not_of("0123456789 "), std::string::npos) << sample;
    EXPECT_TRUE(succeeded(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 2")));
    EXPECT_TRUE(succeeded(run_program(CONVERT_PROGRAM, run + " --out " + folder / "converted")));
    EXPECT_FALSE(fs::exists(folder / "converted/tokenizer.json"));
}

TEST(Masks, SayWhichTargetsCount) {
    const TemporaryFolder folder;
    const std::string shards = folder / "shards", text = folder.write("a.txt", shakespeare(4'000)),
                      run = folder / "run";
    ASSERT_TRUE(succeeded(
        run_program(TOKENIZE_PROGRAM, "--tokenizer byte --val-fraction 0.25 --out " + shards + " " + text)));
    const std::string options =
        "--vocab 256 --layers 1 --heads 1 --channels 8 --context 32 --checkpoint-every 1 --train-data '" +
        shards + "/train_*' --val-data '" + shards +
        "/val_*' --val-every 1 --batch-size 2 --sample-every 0 --steps 2 ";
    const auto loss_with = [&](const std::string& train_mask, const std::string& val_mask,
                               const std::string& name) {
        folder.write("shards/train_000000.mask", train_mask);
        folder.write("shards/val_000000.mask", val_mask);
        const ProgramResult result = run_program(TRAIN_PROGRAM, options + "--out " + folder / name);
        EXPECT_TRUE(succeeded(result));
        EXPECT_TRUE(
            says(result.output,
                 "data: 3000 tokens to train on (masks say which count as targets), 1000 to validate"));
        return metrics_of(folder / name, "train").at(0).at("loss").get<double>();
    };
    const std::string all(3000, '\1'), all_val(1000, '\1');
    std::string half = all, half_val = all_val;
    for (size_t i = 0; i < half.size(); i += 2) half[i] = '\0';
    for (size_t i = 0; i < half_val.size(); i += 2) half_val[i] = '\0';
    std::string other = all;
    for (size_t i = 1; i < other.size(); i += 2) other[i] = '\0';
    // The two halves of the targets have the same size, so the mean of their losses is that of the whole.
    // The losses differ because the targets do.
    const double whole = loss_with(all, all_val, "whole");
    const double first = loss_with(half, half_val, "run");
    const double second = loss_with(other, all_val, "second");
    EXPECT_NEAR((first + second) / 2, whole, 1e-6);
    EXPECT_GT(std::abs(first - second), 1e-4);
    // One model, evaluated under two masks: 31 windows of 32 targets, or of 16.
    const auto evaluated = [&] {
        return json::parse(
            run_program(EVALUATE_PROGRAM, run + " --json --val-data '" + shards + "/val_*'").output);
    };
    const json under_all = evaluated();
    folder.write("shards/val_000000.mask", half_val);
    const json under_half = evaluated();
    EXPECT_EQ(under_all.at("tokens"), 31 * 32);
    EXPECT_EQ(under_half.at("tokens"), 31 * 16);
    EXPECT_GT(std::abs(under_half.at("loss").get<double>() - under_all.at("loss").get<double>()), 1e-6);
    EXPECT_NEAR(under_half.at("loss").get<double>(), metrics_of(run, "val").back().at("loss").get<double>(),
                1e-6);  // the run's own validation had that mask too
    // Another mask is other data.
    EXPECT_TRUE(is_refused(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 3"),
                           {"belongs to another run: --train-data 3000 tokens in 1 file, checksum "}));
    folder.write("shards/train_000000.mask", half);
    EXPECT_TRUE(succeeded(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 3")));
    // No target is left.
    folder.write("shards/val_000000.mask", std::string(1000, '\0'));
    EXPECT_TRUE(is_refused(run_program(EVALUATE_PROGRAM, run + " --val-data '" + shards + "/val_*'"),
                           {"the masks of the validation data hide every target"}));
}

}  // namespace
