// evaluate_gpt2 as users run it: HellaSwag against PyTorch (dev/reference.py), a split's loss, JSON, and
// errors for wrong input
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "program.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/data/hellaswag.h"
#include "trainer/data/token_shard.h"
#include "trainer/engine/model.h"
#include "trainer/formats/safetensors.h"
#include "trainer/models/families.h"
#include "trainer/models/hugging_face.h"
#include "trainer/models/model_file.h"

namespace {

constexpr ModelConfig config{131, 32, 2, 3, 48};  // that of test/reference/model.safetensors
constexpr int seq_len = 19;                       // with which hellaswag.jsonl was scored
const std::string hellaswag_file = std::string(PROJECT_ROOT) + "/test/reference/hellaswag.jsonl";

// PyTorch's small model as a Hugging Face folder. broken: one of its weights is a NaN.
std::string model_folder(const TemporaryFolder& folder, bool broken = false) {
    const SafetensorsFile weights(std::string(PROJECT_ROOT) + "/test/reference/model.safetensors");
    const TensorTable table = table_of(config);
    std::vector<float> masters(table.elements());
    for (const Tensor& tensor : table.tensors()) {
        const std::vector<float> values = weights.floats(tensor.name);
        std::copy(values.begin(), values.end(), masters.begin() + static_cast<std::ptrdiff_t>(tensor.offset));
    }
    if (broken) {
        for (const Tensor& tensor : table.tensors()) {
            if (tensor.name.ends_with("c_fc.weight")) masters[tensor.offset + 5] = NAN;
        }
    }
    const std::string path = folder / "model";
    std::filesystem::create_directory(path);
    write_hugging_face_model(path + "/model.safetensors", table, masters.data());
    write_hugging_face_metadata(path, config, *make_tokenizer("byte"));
    return path;
}

nlohmann::json json_of(const std::string& arguments) {
    const ProgramResult result = run_program(EVALUATE_PROGRAM, arguments + " --json");
    EXPECT_TRUE(succeeded(result));
    return nlohmann::json::parse(result.output, nullptr, false);  // one object and nothing else
}

TEST(EvaluateProgram, ScoresHellaSwagAsPyTorch) {
    const TemporaryFolder folder;
    std::vector<HellaSwagExample> examples = read_hellaswag(hellaswag_file, *make_tokenizer("byte"));
    std::vector<EndingScores> expected;
    std::ifstream file(hellaswag_file);
    for (std::string line; std::getline(file, line);)
        expected.push_back({nlohmann::json::parse(line)["sum"], nlohmann::json::parse(line)["mean"]});
    const HellaSwagResult right = count_right(examples, expected);

    const auto found =
        json_of(fmt::format("{} --hellaswag {} --seq-len {} --batch-size 5 --hellaswag-scores {}",
                            model_folder(folder), hellaswag_file, seq_len, folder / "scores"));
    EXPECT_EQ(found.size(), 1U) << found;  // no loss without --val-data
    EXPECT_EQ(found["hellaswag"]["accuracy"], right.accuracy);
    EXPECT_EQ(found["hellaswag"]["accuracy_norm"], right.accuracy_norm);
    EXPECT_EQ(found["hellaswag"]["examples"], examples.size());

    std::ifstream scores(folder / "scores");
    for (size_t i = 0; i < examples.size(); i++) {
        std::string line;
        ASSERT_TRUE(std::getline(scores, line));
        const auto score = nlohmann::json::parse(line);
        EXPECT_EQ(score["ind"], examples[i].index);
        EXPECT_EQ(score["label"], examples[i].label);
        ASSERT_EQ(score["mean"].size(), expected[i].mean.size());
        // fp32 rounding of log-likelihoods near 5, at each of up to 19 tokens in the sum
        for (size_t j = 0; j < expected[i].mean.size(); j++) {
            EXPECT_NEAR(score["mean"][j].get<double>(), expected[i].mean[j], 1e-5);
            EXPECT_NEAR(score["sum"][j].get<double>(), expected[i].sum[j], 19e-5);
        }
    }
}

// 101 windows in batches of 8, the last one of 5; the oracle takes them one by one.
TEST(EvaluateProgram, LossOfASplitIsTheMeanOverItsWindows) {
    const TemporaryFolder folder;
    std::string text;
    for (int i = 0; i < 101 * seq_len + 7; i++) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    const std::string model_path = model_folder(folder), text_path = folder.write("val.txt", text);

    Model<float> model(make_family<float>(config), {.B = 1, .T = seq_len, .training = false});
    model.allocate();
    load_weights(model, *open_model(model_path));
    double sum = 0;
    std::vector<int32_t> memory(3 * seq_len);
    const Batch batch{.B = 1,
                      .T = seq_len,
                      .target_count = seq_len,
                      .inputs = memory.data(),
                      .targets = &memory[seq_len],
                      .order = &memory[2 * seq_len]};
    for (int window = 0; window < 101; window++) {
        for (int t = 0; t < seq_len; t++) {
            batch.inputs[t] = text[static_cast<size_t>(window * seq_len + t)];
            batch.targets[t] = text[static_cast<size_t>(window * seq_len + t + 1)];
            batch.order[t] = t;
        }
        sum += model.evaluate(batch);
    }
    const double loss = sum / (101 * seq_len);

    const auto found =
        json_of(fmt::format("{} --val-data {} --seq-len {} --batch-size 8", model_path, text_path, seq_len));
    EXPECT_EQ(found.size(), 4U) << found;
    EXPECT_NEAR(found["loss"].get<double>(), loss, 5e-6);  // sums of up to 152 losses in fp32
    EXPECT_NEAR(found["bits_per_byte"].get<double>(), loss / std::log(2.0), 1e-5) << "a token is a byte";
    EXPECT_NEAR(found["perplexity"].get<double>(), std::exp(loss), std::exp(loss) * 5e-6);
    EXPECT_EQ(found["tokens"], 101 * seq_len);
    // Only sixteen windows.
    EXPECT_EQ(json_of(fmt::format("{} --val-data {} --seq-len {} --batch-size 8 --val-steps 2", model_path,
                                  text_path, seq_len))["tokens"],
              16 * seq_len);
    // The weights rounded to int8 differ, but only slightly.
    const double rounded = json_of(
        fmt::format("{} --val-data {} --seq-len {} --quantize int8", model_path, text_path, seq_len))["loss"];
    EXPECT_NE(rounded, loss);
    EXPECT_NEAR(rounded, loss, 0.01 * loss);
}

// Shards that tokenize made say which tokenizer it was. With another one, or none, bits per byte are not
// known.
TEST(EvaluateProgram, BitsPerByteNeedTheTokenizerOfTheShards) {
    const TemporaryFolder folder;
    const std::string model = model_folder(folder), text = folder.write("val.txt", std::string(400, 'x'));
    const std::string shards = folder / "shards", shard = shards + "/train_000000.bin";
    EXPECT_EQ(
        run_program(TOKENIZE_PROGRAM, fmt::format("--tokenizer byte --out {} {}", shards, text)).exit_code,
        0);
    const std::string maker = shards + "/tokenizer_of_shards.json";
    EXPECT_EQ(read_file(maker), "{\"tokenizer\":\"byte\"}\n");
    // The folder holds no text.
    const ProgramResult folder_of_shards =
        run_program(EVALUATE_PROGRAM, fmt::format("{} --val-data {} --seq-len {}", model, shards, seq_len));
    EXPECT_TRUE(succeeded(folder_of_shards));
    EXPECT_EQ(folder_of_shards.errors, "");
    const std::string evaluate = fmt::format("{} --val-data {} --seq-len {}", model, shard, seq_len);
    EXPECT_TRUE(json_of(evaluate)["bits_per_byte"].is_number());
    EXPECT_TRUE(json_of(evaluate + " --tokenizer none")["bits_per_byte"].is_null());
    std::ofstream(maker) << R"({"tokenizer": "bpe-0123456789abcdef"})";
    EXPECT_TRUE(json_of(evaluate)["bits_per_byte"].is_null());
    EXPECT_TRUE(
        says(run_program(EVALUATE_PROGRAM, evaluate).errors,
             "train_000000.bin was made by the tokenizer bpe-0123456789abcdef, not by byte, so that bits "
             "per byte are not known"));
}

TEST(EvaluateProgram, TellsAPersonBoth) {
    const TemporaryFolder folder;
    const ProgramResult result = run_program(
        EVALUATE_PROGRAM, fmt::format("{} --val-data {} --hellaswag {} --dtype bf16", model_folder(folder),
                                      folder.write("val.txt", std::string(200, 'x')), hellaswag_file));
    EXPECT_TRUE(succeeded(result));
    EXPECT_EQ(result.output.find("loss "), 0U) << result.output;
    EXPECT_TRUE(says(result.output, " on 192 tokens\nHellaSwag accuracy "));
    EXPECT_TRUE(says(result.output, " on 9 examples\n"));
    EXPECT_EQ(
        result.errors,
        "evaluate_gpt2: 5 contexts with an ending have more than 32 tokens and are cut at the beginning\n");
}

TEST(EvaluateProgram, WrongInputEndsInOneClearLine) {
    const TemporaryFolder folder;
    const std::string model = model_folder(folder), text = folder.write("val.txt", std::string(200, 'x')),
                      hellaswag = " --hellaswag " + hellaswag_file;
    const std::string shard = folder.write("eval.bin", "no shard");
    const auto refused = [](const std::string& arguments, const std::string& complaint) {
        const ProgramResult result = run_program(EVALUATE_PROGRAM, arguments);
        EXPECT_TRUE(is_refused(result, {complaint})) << arguments;
        EXPECT_EQ(result.output, "") << arguments;
        EXPECT_TRUE(result.errors.starts_with("evaluate_gpt2: ")) << result.errors;
    };
    refused("", "CHECKPOINT is required");
    refused(model, "nothing to evaluate");
    refused(folder / "nothing" + hellaswag, folder / "nothing");
    refused(model + " --hellaswag " + shard, "line 1: is not a JSON object");
    refused(model + " --val-data " + shard, "too short for a token shard");
    refused(model + " --val-data " + text + " --hellaswag-scores s", "needs --hellaswag");
    refused(model + hellaswag + " --seq-len 33", "longer than the model's context of 32");
    refused(model + hellaswag + " --seq-len 5", "does not fit into sequences of 5");
    // Also if every token of the data is in the vocabulary.
    refused(model + hellaswag + " --tokenizer gpt2",
            "has a vocabulary of 131, which the 50257 tokens of --tokenizer gpt2 do not fit");
    refused(model + hellaswag + " --batch-size 0", "--batch-size");
    refused(model + hellaswag + " --batch-size 4x", "--batch-size");
    // The error comes before anything of that size is prepared; otherwise the tokens that are not in the
    // model's vocabulary would be reported first.
    const std::string unknown =
        folder.write("unknown.txt", "caf\u00e9 au lait for two hundred guests, all of them served at once");
    refused(model + " --val-data " + unknown, "outside the vocabulary of 131");
    for (const std::string& data : {hellaswag, " --val-data " + unknown})
        refused(model + data + " --batch-size 1000000", "are free");
    refused(model + hellaswag + " --dtype fp64", "expected bf16|fp32|tf32");
    refused(model + hellaswag + " --unknown", "--unknown");
}

TEST(EvaluateProgram, AModelThatIsNotFiniteGetsNoScore) {
    const TemporaryFolder folder;
    const std::string model = model_folder(folder, true),
                      loss = " --val-data " + folder.write("val.txt", std::string(200, 'x'));
    for (const std::string setting : {"", " --json", " --quantize int8", " --dtype bf16 --quantize int8"}) {
        for (const auto& [data, complaint] :
             {std::pair{loss, "the model's loss is not finite"},
              {" --hellaswag " + hellaswag_file,
               "the model's likelihoods of HellaSwag's endings are not finite"}}) {
            const ProgramResult result =
                run_program(EVALUATE_PROGRAM, model + data + " --seq-len 32" + setting);
            EXPECT_EQ(result.exit_code, 1) << setting;
            EXPECT_EQ(result.output, "");
            EXPECT_TRUE(says(result.errors, fmt::format("evaluate_gpt2: {}\n", complaint)));
        }
    }
}

TEST(EvaluateProgram, AResultThatCannotBeWrittenIsAnError) {
    const TemporaryFolder folder;
    const std::string model = model_folder(folder), text = folder.write("val.txt", std::string(200, 'x'));
    for (const char* arguments : {"", "--json"}) {
        for (const char* output : {">/dev/full", ">&-"}) {
            const ProgramResult result =
                run_program("/bin/sh", fmt::format("-c \"'{}' '{}' --val-data '{}' {} {}\"", EVALUATE_PROGRAM,
                                                   model, text, arguments, output));
            EXPECT_EQ(result.exit_code, 1) << output;
            EXPECT_EQ(result.errors, "evaluate_gpt2: the result cannot be written to standard output\n")
                << output;
        }
    }
}

// It was an error after the evaluation, whose result was lost.
TEST(EvaluateProgram, APlaceWhereNoScoresCanBeWrittenIsAnErrorBeforeTheEvaluation) {
    const TemporaryFolder folder;
    const std::string arguments =
        model_folder(folder) + " --hellaswag " + hellaswag_file + " --hellaswag-scores ";
    const ProgramResult early = run_program(EVALUATE_PROGRAM, arguments + folder / "none/scores");
    EXPECT_EQ(early.exit_code, 1);
    EXPECT_TRUE(early.errors.starts_with("evaluate_gpt2: " + folder / "none/scores")) << early.errors;
    EXPECT_EQ(std::count(early.errors.begin(), early.errors.end(), '\n'), 1) << early.errors;
    EXPECT_TRUE(is_refused(run_program(EVALUATE_PROGRAM, arguments + folder / "model"),
                           {"--hellaswag-scores " + folder / "model", "is a folder"}));
    // They were replaced: as root, even the device.
    ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
    EXPECT_TRUE(is_refused(run_program(EVALUATE_PROGRAM, arguments + folder / "fifo"),
                           {folder / "fifo", "is not a regular file"}));
    EXPECT_TRUE(std::filesystem::is_fifo(folder / "fifo"));
    // The scores would replace the file with the result.
    std::filesystem::create_symlink("/proc/self/fd/1", folder / "stdout");
    EXPECT_TRUE(is_refused(run_program(EVALUATE_PROGRAM, arguments + folder / "stdout"),
                           {folder / "stdout", "is this program's standard output"}));
}

}  // namespace
