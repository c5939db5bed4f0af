// The training program, run as users run it: its files, how it ends, and one clear line for every wrong
// input.
#include <sys/stat.h>

#include "kernels/simt/host_device.h"
#include "metrics_lines.h"
#include "program.h"
#include "trainer/checkpoint/run_folder.h"
#include "write_shard.h"

namespace {

// A model that takes no time.
const std::string tiny =
    "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 2 --warmup 2 --sample-tokens 5 "
    "--checkpoint-every 0 ";

// The same with a checkpoint at the end, and nothing else.
const std::string tiny_kept =
    "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 2 --val-every 0 --sample-every 0 ";

void succeed(const std::string& arguments) {
    EXPECT_TRUE(succeeded(run_program(TRAIN_PROGRAM, arguments))) << arguments;
}

ProgramResult train(const std::string& arguments, const std::string& before = "cd /") {
    return run_program(TRAIN_PROGRAM, tiny + arguments, before);
}

TEST(TrainProgram, WritesOneTrainLineAStepAndWhatWasAskedFor) {
    const TemporaryFolder folder;
    const ProgramResult result = train(
        "--steps 6 --val-every 4 --val-steps 2 --sample-every 3 --total-batch 64 --out " + folder / "run");
    ASSERT_TRUE(succeeded(result));
    EXPECT_TRUE(says(result.output, "64 tokens = 2 x 16 x 2 micro-steps"));
    const nlohmann::json first = metrics_of(folder / "run").at(0);
    EXPECT_EQ(first.at("kind"), "run");
    EXPECT_EQ(first.at("options").at("total-batch"), 64);
    // their defaults were "" here, and their values in a resumed run
    EXPECT_EQ(first.at("options").at("seq-len"), 16);
    EXPECT_EQ(first.at("options").at("tokenizer"), "byte");
    EXPECT_EQ(first.at("model").at("layers"), 1);
    const std::vector<nlohmann::json> steps = metrics_of(folder / "run", "train");
    ASSERT_EQ(steps.size(), 6u);
    double peak = first.at("mfu_peak").at("flops_per_second");
    for (size_t i = 0; i < steps.size(); i++) {
        for (const nlohmann::json& raised : metrics_of(folder / "run", "mfu_peak"))
            if (raised.at("step") == i + 1) peak = raised.at("flops_per_second");
        EXPECT_LE(steps[i].at("mfu"), 1);
        EXPECT_EQ(steps[i].at("step"), i + 1);
        EXPECT_EQ(steps[i].at("tokens"), (i + 1) * 64);
        for (const char* key : {"loss", "grad_norm", "lr", "step_ms", "tokens_per_second"})
            EXPECT_TRUE(steps[i].at(key).is_number()) << key;
        // 6 N + 6 L C T operations a token, against the peak that the run's first line names.
        const double flops = 6 * first.at("model").at("parameters").get<double>() + 6 * 1 * 16 * 16;
        EXPECT_NEAR(steps[i].at("mfu").get<double>() * peak,
                    flops * steps[i].at("tokens_per_second").get<double>(),
                    1e-6 * flops * steps[i].at("tokens_per_second").get<double>());
    }
    // an untrained model: every byte is equally likely
    EXPECT_NEAR(steps[0].at("loss").get<double>(), std::log(256.0), 0.1);
    EXPECT_DOUBLE_EQ(steps[0].at("lr").get<double>(), 1e-3 / 2);
    const std::vector<nlohmann::json> validations = metrics_of(folder / "run", "val"),
                                      samples_drawn = metrics_of(folder / "run", "sample");
    ASSERT_EQ(validations.size(), 2u);  // at step 4 and at the last one
    EXPECT_EQ(validations[1].at("step"), 6);
    ASSERT_EQ(samples_drawn.size(), 2u);
}

// oneDNN left parts of its products uncomputed where OpenMP gave fewer threads than it expected.
TEST(TrainProgram, LossesDoNotDependOnTheThreadsThatTheEnvironmentAllows) {
    const TemporaryFolder folder;
    std::vector<double> expected;
    for (const std::string variable :
         {"OMP_NUM_THREADS=2", "OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"}) {
        const std::string run = folder / variable;
        ASSERT_TRUE(succeeded(run_program(
            TRAIN_PROGRAM,
            "--layers 1 --channels 128 --seq-len 64 --steps 3 --val-every 0 --sample-every 0 --out " + run,
            "cd /; export " + variable)));
        std::vector<double> losses;
        for (const nlohmann::json& step : metrics_of(run, "train")) losses.push_back(step.at("loss"));
        ASSERT_EQ(losses.size(), 3u);
        if (expected.empty()) expected = losses;
        for (size_t i = 0; i < 3; i++) EXPECT_NEAR(losses[i], expected[i], 1e-5) << variable;
    }
}

// evaluate_gpt2 said so, but training did not.
TEST(TrainProgram, SaysHowManyContextsOfHellaSwagAreCut) {
    const TemporaryFolder folder;
    const auto output_with = [&](const std::string& context) {
        const std::string examples = folder.write(
            context, R"({"ctx": ")" + context + R"(", "endings": ["one", "longer", "longest"], "label": 0})");
        const ProgramResult result = train("--steps 1 --val-steps 1 --hellaswag " + examples +
                                           " --hellaswag-every 1 --out " + folder / "run_" + context);
        EXPECT_TRUE(succeeded(result));
        return result.output;
    };
    EXPECT_TRUE(says(output_with("twelve_bytes"),
                     "\n2 contexts with an ending have more than 16 tokens and are cut at the beginning\n"));
    EXPECT_FALSE(says(output_with("short"), "cut at the beginning"));
}

// The table is printed once, and the run then continues and computes the same as without it.
TEST(TrainProgram, AProfileIsPrintedAndTheRunGoesOn) {
    const TemporaryFolder folder;
    // On a GPU two runs may otherwise choose other algorithms for their products, with other last bits.
    const std::string options =
        "--deterministic --val-every 2 --val-steps 1 --sample-every 0 --steps 7 --total-batch 64 --out ";
    const ProgramResult plain = train(options + folder / "plain"),
                        profiled = train("--profile 2 " + options + folder / "profiled");
    ASSERT_TRUE(succeeded(plain));
    ASSERT_TRUE(succeeded(profiled));
    EXPECT_FALSE(says(plain.output, "profile:"));
    const size_t table = profiled.output.find("profile: the mean of 2 steps");
    ASSERT_NE(table, std::string::npos) << profiled.output;
    EXPECT_EQ(profiled.output.find("profile:", table + 1), std::string::npos);
    EXPECT_GT(table, profiled.output.find("step 5/7"));
    EXPECT_LT(table, profiled.output.find("step 6/7"));

    const std::vector<nlohmann::json> profiles = metrics_of(folder / "profiled", "profile"),
                                      steps = metrics_of(folder / "profiled", "train"),
                                      expected = metrics_of(folder / "plain", "train");
    ASSERT_EQ(profiles.size(), 1u);
    ASSERT_EQ(steps.size(), 7u);
    for (size_t i = 0; i < 7; i++) EXPECT_EQ(steps[i].at("loss"), expected[i].at("loss")) << i;
    const nlohmann::json& profile = profiles[0];
    EXPECT_EQ(profile.at("step"), 5);
    EXPECT_NEAR(profile.at("step_ms").get<double>(),
                (steps[3].at("step_ms").get<double>() + steps[4].at("step_ms").get<double>()) / 2, 1e-6);
    EXPECT_LE(profile.at("operations_ms"), profile.at("step_ms"));
    double ms = 0;
    for (const nlohmann::json& row : profile.at("operations")) {
        ms += row.at("ms").get<double>();
        EXPECT_TRUE(says(profiled.output, row.at("name"))) << row;
        if (row.at("name") == "qkv") {
            EXPECT_EQ(row.at("shape"), nlohmann::json({32, 16, 48}));
            EXPECT_EQ(row.at("calls"), 2);  // one layer, two micro-steps; validation does not count
        }
    }
    EXPECT_NEAR(ms, profile.at("operations_ms").get<double>(), 1e-9);
    EXPECT_GT(profile.at("peak_bytes_per_second"), 0);
    EXPECT_GT(profile.at("peak_flops_per_second"), 0);
    EXPECT_TRUE(metrics_of(folder / "plain", "profile").empty());
}

// Warming up and measuring start again with the remaining steps; if there are too few, the run continues
// without a table.
TEST(TrainProgram, AResumedRunIsProfiledFromWhereItGoesOn) {
    const TemporaryFolder folder;
    const auto run = [](const std::string& options) {
        return run_program(TRAIN_PROGRAM,
                           "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 2 --warmup 2 "
                           "--schedule constant --val-every 0 "
                           "--sample-every 0 --checkpoint-every 2 --keep 9 " +
                               options);
    };
    const std::string out = folder / "run", other = folder / "other";
    const ProgramResult first = run("--steps 4 --out " + out),
                        profiled = run("--steps 9 --profile 2 --resume auto --out " + out);
    ASSERT_TRUE(succeeded(first));
    ASSERT_TRUE(succeeded(profiled));
    ASSERT_EQ(metrics_of(out, "train").size(), 9u);
    const std::vector<nlohmann::json> profiles = metrics_of(out, "profile");
    ASSERT_EQ(profiles.size(), 1u);
    EXPECT_EQ(profiles[0].at("step"), 4 + 3 + 2);

    const ProgramResult short_of_steps =
        run("--steps 9 --profile 2 --resume " + out + "/checkpoints/step_00000006 --out " + other);
    ASSERT_TRUE(succeeded(short_of_steps));
    EXPECT_TRUE(says(short_of_steps.output, "--profile 2 is ignored: too few steps are left to measure"));
    EXPECT_TRUE(metrics_of(other, "profile").empty());
    EXPECT_EQ(metrics_of(other, "train").back().at("step"), 9);
}

TEST(TrainProgram, TheSameCommandTwiceGivesTheSameNumbers) {
    const TemporaryFolder folder;
    std::vector<nlohmann::json> runs[2];
    for (int i = 0; i < 2; i++) {
        const std::string out = folder / ("run" + std::to_string(i));
        // Sampling and validation in between must not disturb training.
        ASSERT_TRUE(succeeded(
            train("--dtype bf16 --deterministic --steps 5 --val-steps 1 " +
                  std::string(i ? "--sample-every 2 --val-every 2" : "--sample-every 0 --val-every 0") +
                  " --out " + out)));
        runs[i] = metrics_of(out, "train");
    }
    ASSERT_EQ(runs[0].size(), 5u);
    for (size_t s = 0; s < 5; s++) {
        EXPECT_EQ(runs[0][s].at("loss"), runs[1][s].at("loss"));
        EXPECT_EQ(runs[0][s].at("grad_norm"), runs[1][s].at("grad_norm"));
    }
}

// A step's results are read during the next step, and written as if they were not: in order, up to the
// step at which a run stops.
TEST(TrainProgram, LinesStandInTheOrderOfTheSteps) {
    const TemporaryFolder folder;
    ASSERT_TRUE(
        succeeded(train("--steps 7 --val-every 3 --val-steps 1 --sample-every 2 --log-layer-norms 3 --out " +
                        folder / "run")));
    std::string order;
    for (const nlohmann::json& line : metrics_of(folder / "run")) {
        if (line.at("kind") != "run")
            order += line.at("kind").get<std::string>()[0] + std::to_string(line.at("step").get<int>()) + " ";
    }
    EXPECT_EQ(order, "t1 t2 s2 t3 l3 v3 t4 s4 t5 t6 l6 v6 s6 t7 v7 s7 ");
}

TEST(TrainProgram, AMaskThatHidesEveryTargetGaveALossOfZero) {
    const TemporaryFolder folder;
    const std::string shard = write_shard(folder, "train.bin", std::vector<Token>(12 * 16 + 5, 7)),
                      val = write_shard(folder, "val.bin", std::vector<Token>(12 * 16 + 5, 7));
    const std::string options = "--tokenizer byte --vocab 256 --train-data " + shard +
                                " --total-batch 64 --steps 9 --sample-every 0 --out " + folder / "run";
    std::string mask(12 * 16 + 5, '\0');
    mask[0] = mask.back() = 1;  // of a token that is no target, and of one in no window
    folder.write("train.mask", mask);
    EXPECT_TRUE(
        is_refused(train(options + " --val-every 0"), {"the masks of the training data hide every target"}));
    folder.write("train.mask", std::string(mask.size(), '\1'));
    folder.write("val.mask", mask);
    EXPECT_TRUE(is_refused(train(options + " --val-data " + val),
                           {"the masks of the validation data hide every target"}));
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

// 151,936 is Qwen 3's vocabulary. The four steps of two micro-steps read all of the data, where every fifth
// token is the last one.
TEST(TrainProgram, AVocabularyPast16BitsTrainsResumesAndGenerates) {
    const TemporaryFolder folder;
    constexpr int V = 151'936;
    TokenShardWriter shard(folder / "train.bin", 0, V);
    std::vector<Token> tokens(4 * 16 + 1);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<Token>(V - 1 - i % 5 * 31'000);
    shard.append(tokens);
    shard.commit();
    const auto run = [&](const std::string& options, const std::string& out) {
        EXPECT_TRUE(succeeded(run_program(TRAIN_PROGRAM, options + " --out " + folder / out)));
        return read_file(checkpoint_folder(folder / out, 4) + "/model.safetensors");
    };
    const std::string whole =
        run("--layers 1 --heads 1 --channels 8 --context 8 --batch-size 1 --total-batch 16 --tokenizer none "
            "--vocab 151936 --val-every 0 --sample-every 4 --sample-tokens 4 --checkpoint-every 2 --steps 4 "
            "--train-data " +
                folder / "train.bin",
            "whole");
    EXPECT_TRUE(run("--resume " + checkpoint_folder(folder / "whole", 2), "resumed") == whole);
    const ProgramResult generated = run_program(
        GENERATE_PROGRAM, folder / "whole" + " --tokenizer none --tokens 151935 --max-tokens 3 --json");
    EXPECT_TRUE(succeeded(generated));
    EXPECT_EQ(nlohmann::json::parse(generated.output)["samples"][0]["tokens"].size(), 3u);
    EXPECT_TRUE(
        is_refused(run_program(GENERATE_PROGRAM, folder / "whole" + " --tokenizer none --tokens 151936"),
                   {"token 151936 of the prompt; expected 0 to 151935"}));
}

TEST(TrainProgram, AStepWithoutTargetsIsSkipped) {
    const TemporaryFolder folder;
    // Twelve windows, of which a step uses four; those of the second step have no targets, and are missing
    // in the other shard.
    std::vector<Token> tokens(12 * 16 + 1);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<Token>(i * i % 251);
    std::string mask(tokens.size(), '\1');
    std::fill(mask.begin() + 65, mask.begin() + 129, '\0');
    const std::string all = write_shard(folder, "all.bin", tokens);
    folder.write("all.mask", mask);
    const std::vector<Token> first(tokens.begin(), tokens.begin() + 65);
    const std::vector<Token> rest(tokens.begin() + 128, tokens.end());
    write_shard(folder, "part_0.bin", first);
    write_shard(folder, "part_1.bin", rest);
    const auto run = [&](const std::string& data, const std::string& steps) {
        EXPECT_TRUE(succeeded(run_program(
            TRAIN_PROGRAM,
            "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 2 --total-batch 64 --warmup 0 "
            "--lr 0.01 --schedule constant --tokenizer byte --vocab 256 --data-order file --val-every 0 "
            "--sample-every 0 --max-skipped 1 --train-data '" +
                data + "' --steps " + steps + " --out " + folder / steps)));
        return read_file(checkpoint_folder(folder / steps, std::stoi(steps)) + "/model.safetensors");
    };
    EXPECT_TRUE(run(all, "6") == run(folder / "part_*.bin", "4")) << "the skipped steps changed the weights";

    std::vector<int> skipped;
    for (const nlohmann::json& line : metrics_of(folder / "6", "skipped")) {
        skipped.push_back(line.at("step"));
        EXPECT_TRUE(line.at("loss").is_null() && line.at("grad_norm").is_null());
        EXPECT_EQ(line.at("reason"), "no target counts, because masks hide all of them");
    }
    EXPECT_EQ(skipped, (std::vector{2, 5}));
    const std::vector<nlohmann::json> lines = metrics_of(folder / "6", "train");
    ASSERT_EQ(lines.size(), 6u);
    for (const nlohmann::json& line : lines)
        EXPECT_EQ(line.at("loss").is_null(), line.at("step") == 2 || line.at("step") == 5) << line;
    const TrainingState state = read_state(checkpoint_folder(folder / "6", 6));
    EXPECT_EQ(state.optimizer_step, 4);
    EXPECT_EQ(state.skipped, 0);
}

TEST(TrainProgram, AnErrorFindsTheStepsBeforeItWrittenDown) {
    const TemporaryFolder folder;
    // A shard of 40 windows, of which a step uses four; the 22nd holds an invalid token.
    std::vector<Token> tokens(40 * 16 + 1, 7);
    tokens[22 * 16 + 3] = 999;
    const std::string shard = write_shard(folder, "train.bin", tokens);
    EXPECT_TRUE(is_refused(train("--tokenizer byte --vocab 256 --train-data " + shard +
                                 " --data-order file --total-batch 64 --steps 9 " +
                                 "--val-every 0 --sample-every 0 --out " + folder / "run"),
                           {"token 999"}));
    EXPECT_EQ(metrics_of(folder / "run", "train").size(), 5u);
}

TEST(TrainProgram, ARunWithoutFiniteNormsEndsAtTheStepThatItNames) {
    const TemporaryFolder folder;
    // From the second step on no gradient is finite.
    const ProgramResult result =
        train("--steps 20 --lr 1e30 --val-every 0 --sample-every 0 --max-skipped 3 --out " + folder / "run");
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_TRUE(says(result.errors,
                     "3 steps in a row had a gradient norm that is not finite; the run ends at step 4"));
    EXPECT_EQ(metrics_of(folder / "run", "train").size(), 4u);
    EXPECT_EQ(metrics_of(folder / "run", "skipped").size(), 3u);
    EXPECT_TRUE(says(result.output, "| loss nan | norm "));
    EXPECT_FALSE(says(result.output, "-nan"));
}

// A model that fits eight processes with --zero 1 but not one process; a step of more sequences than a
// micro-step may have.
TEST(TrainProgram, PlansWithAnAutomaticBatchThatOneProcessCouldNotHave) {
    const ProgramResult eight = run_program(TRAIN_PROGRAM,
                                            "--model gpt2 --seq-len 1024 --dtype bf16 --total-batch 524288 "
                                            "--batch-size auto --zero 1 --world-size 8 "
                                            "--device-memory 2G --plan");
    EXPECT_TRUE(succeeded(eight));
    EXPECT_TRUE(says(eight.output, "8 processes"));
    const ProgramResult huge = run_program(
        TRAIN_PROGRAM,
        "--model gpt2 --seq-len 1024 --batch-size auto --total-batch 4294967296 --device-memory 40G --plan");
    EXPECT_TRUE(succeeded(huge));
    EXPECT_TRUE(says(huge.output, "step: 4294967296 tokens"));
}
TEST(TrainProgram, PlanPrintsAndStops) {
    const TemporaryFolder folder;
    const ProgramResult result = run_program(
        TRAIN_PROGRAM,
        "--model gpt2-xl --batch-size 16 --dtype bf16 --device-memory 80G --plan --out " + folder / "run");
    EXPECT_TRUE(succeeded(result));
    EXPECT_TRUE(says(result.output, "optimizer state"));
    EXPECT_TRUE(says(result.output, "1557611200 parameters"));
    EXPECT_TRUE(folder.files().empty());
}

TEST(TrainProgram, AutomaticBatchIsTheLargestThatFits) {
    const TemporaryFolder folder;
    const std::string options = "--model d12 --batch-size auto --total-batch 65536 --plan --device-memory ";
    const ProgramResult roomy = run_program(TRAIN_PROGRAM, options + "900G"),
                        tight = run_program(TRAIN_PROGRAM, options + "12G");
    EXPECT_TRUE(says(roomy.output, "65536 tokens = 64 x 1024 x 1 micro-step"));
    EXPECT_TRUE(succeeded(tight));
    EXPECT_FALSE(says(tight.output, "65536 tokens = 64 x 1024"));
}

// The logits of 124M and 64 x 1024 tokens take 12.3 GiB in fp32.
TEST(TrainProgram, TheHeadInChunksTakesLessMemoryAndLeavesRoomForMoreSequences) {
    const std::string options = "--model d12 --total-batch 65536 --plan --device-memory ";
    const auto activations = [&](const std::string& more) {
        const ProgramResult result = run_program(TRAIN_PROGRAM, options + "900G --batch-size 64 " + more);
        return number_in(result.output, "  activations ", " GiB");
    };
    // printed with one decimal
    EXPECT_NEAR(activations("") - activations("--head-chunks 8"), 7.0 / 8 * 64 * 1024 * 50304 * 4 / 0x1p30,
                0.11);
    const auto sequences = [&](const std::string& more) {
        const ProgramResult result = run_program(TRAIN_PROGRAM, options + "24G --batch-size auto " + more);
        return number_in(result.output, "65536 tokens = ", " x 1024");
    };
    EXPECT_GT(sequences("--head-chunks 16"), sequences(""));
    EXPECT_GT(sequences(""), 0);
}

// Every wrong input: exit code 2, one line that describes the error, and no output folder.
struct WrongInput {
    const char *name, *arguments, *said;
};
class WrongInputs : public testing::TestWithParam<WrongInput> {};
TEST_P(WrongInputs, EndInOneClearLine) {
    const TemporaryFolder folder;
    folder.write("short.txt", "too short");
    folder.write("short.bin", "not a shard");
    folder.write("foreign.bin", std::string(4096, 'x'));
    folder.write("word.toml", "steps = 1\nfoo\n");
    ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
    folder.write("binary.toml", std::string("\177ELF\0\1\377\n", 8));
    EXPECT_TRUE(is_refused(run_program(TRAIN_PROGRAM, std::string(GetParam().arguments) + " --out run",
                                       "cd '" + folder.path() + "'"),
                           {GetParam().said}));
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}
INSTANTIATE_TEST_SUITE_P(
    TrainProgram, WrongInputs,
    testing::Values(
        WrongInput{"Heads", "--channels 768 --heads 7", "768 channels do not divide into 7 heads"},
        WrongInput{"HeadTooLong", "--channels 512 --heads 2", "expected at most 128"},
        WrongInput{"SequenceTooLong", "--context 64 --seq-len 65", "longer than the context of 64"},
        WrongInput{"MissingData", "--train-data nothing-*.bin", "nothing-*.bin"},
        WrongInput{"TruncatedShard", "--train-data short.bin", "short.bin"},
        WrongInput{"ForeignFile", "--train-data foreign.bin", "foreign.bin"},
        WrongInput{"ShortText", "--train-data short.txt", "short.txt"},
        WrongInput{"TokenBeyondVocabulary", "--vocab 100", "100"},
        WrongInput{"TotalBatch", "--batch-size 4 --seq-len 64 --total-batch 1000", "not a multiple"},
        WrongInput{"ZeroBatch", "--batch-size 0", "--batch-size"},
        WrongInput{"NegativeBatch", "--batch-size=-4", "--batch-size"},
        WrongInput{"BatchWithJunk", "--batch-size 4x", "--batch-size"},
        WrongInput{"ZeroLayers", "--layers 0", "--layers"},
        WrongInput{"NegativeChannels", "--channels=-128", "--channels"},
        WrongInput{"NumberWithJunk", "--steps 100abc", "--steps"},
        WrongInput{"ZeroOfTwo", "--zero 2", "--zero"},
        WrongInput{"ReducedInTf32", "--reduce-dtype tf32", "expected bf16|fp32"},
        WrongInput{"NoTimeToWait", "--comm-timeout 0", "--comm-timeout"},
        WrongInput{"ReplicasNever", "--check-replicas -1", "--check-replicas"},
        WrongInput{"RateWithJunk", "--lr 1e-3x", "--lr"}, WrongInput{"NotANumber", "--lr nan", "--lr"},
        WrongInput{"UnknownOption", "--learning-rate 1", "--learning-rate"},
        WrongInput{"UnknownModel", "--model gpt5", "gpt2-xl"},
        WrongInput{"UnknownSchedule", "--schedule cosin", "cosin"},
        WrongInput{"UnknownType", "--dtype fp16", "fp16"},
        WrongInput{"ModelAndSizes", "--model d12 --layers 3", "--layers"},
        WrongInput{"StepsAndEpochs", "--steps 3 --epochs 2", "--epochs"},
        WrongInput{"AutoWithoutTotal", "--batch-size auto", "--total-batch"},
        WrongInput{"NotEnoughMemory", "--device-memory 1M", "1.0 MiB"},
        WrongInput{"ProfileLongerThanTheRun", "--steps 7 --profile 5",
                   "--profile 5 needs 5 steps after the first 3, but this run has 7 steps"},
        WrongInput{"ProfileOfNoStep", "--profile 0", "--profile"},
        WrongInput{"NegativeProfile", "--profile -1", "--profile"},
        WrongInput{"ProfileWithJunk", "--profile 5x", "--profile"},
        WrongInput{"MemoryWithJunk", "--device-memory 1X", "1X"},
        WrongInput{"WorldSizeWithoutPlan", "--world-size 8",
                   "--world-size is for --plan only; the number of processes that train is set by their "
                   "launcher, such as mpirun -np 8"},
        WrongInput{"PlanOfNoProcess", "--plan --world-size 0", "--world-size 0"},
        WrongInput{"PlanOfAPartOfAMicroStep", "--plan --world-size 8 --total-batch 768",
                   "is not a multiple of a micro-step's 12 x 64 x 8 processes = 6144 tokens"},
        WrongInput{"PlanOfTooManyProcesses", "--plan --world-size 5 --batch-size auto --total-batch 768",
                   "12 sequences of a step do not divide among 5 processes"},
        WrongInput{"OptionOfAnEarlierVersion", "--plan --link pcie4", "--link is not an option"},
        WrongInput{"MissingConfig", "--config none.toml", "none.toml"}),
    [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(
    TrainProgramCommandLine, WrongInputs,
    testing::Values(
        WrongInput{"EmptyData", "--train-data ''", "--train-data has an empty value"},
        WrongInput{"EmptyConfig", "--config ''", "--config has an empty value"},
        WrongInput{"EmptyAfterEquals", "--val-data= --deterministic", "--val-data has an empty value"},
        WrongInput{"EmptyValidation", "--val-data ''", "--val-data has an empty value"},
        WrongInput{"EmptyMemory", "--device-memory ''", "--device-memory has an empty value"},
        WrongInput{"NegativeSeed", "--seed -1",
                   "--seed -1; expected a whole number from 0 to 18446744073709551615"},
        WrongInput{"SeedBeyond64Bits", "--seed 18446744073709551616",
                   "--seed 18446744073709551616; expected a whole number"},
        WrongInput{"TotalBatchThatWraps", "--total-batch -18446744073709551488",
                   "--total-batch -18446744073709551488; expected"},
        WrongInput{"GivenTwice", "--heads 2 --heads 4", "--heads is given 2 times; expected once"},
        WrongInput{"ChoiceGivenTwice", "--dtype fp32 --dtype bf16",
                   "--dtype is given 2 times; expected once"},
        WrongInput{
            "WordInConfig", "--config word.toml",
            "--config word.toml, line 2: 'foo' is not an option's name; expected lines like lr = 0.0006"},
        WrongInput{"BinaryConfig", "--config binary.toml",
                   "--config binary.toml, line 1: is not a line of text; expected lines like"},
        WrongInput{"FolderAsConfig", "--config .", "directory"},
        WrongInput{"DeviceAsConfig", "--config /dev/null",
                   "--config /dev/null: is a device or a pipe; expected"},
        WrongInput{"PipeAsConfig", "--config pipe",
                   "--config pipe: is a device or a pipe; expected a text file"},
        WrongInput{"MemoryWithoutUnit", "--device-memory 40",
                   "--device-memory 40 is less than 1 MiB; expected a size such as 40G"},
        WrongInput{"TotalBatchOfHalfAMicroStep", "--batch-size 2 --seq-len 64 --total-batch 100",
                   "128 tokens; 128 would be"},
        WrongInput{"NoHeadChunk", "--head-chunks 0", "--head-chunks"},
        WrongInput{"MoreHeadChunksThanTokens", "--batch-size 2 --head-chunks 129",
                   "1 to the 2 x 64 = 128 tokens"}),
    [](const auto& info) { return info.param.name; });

TEST(TrainProgram, AnEmptyFolderForOutputIsRefused) {
    EXPECT_TRUE(is_refused(train("--steps 1 --out ''"), {"--out has an empty value"}));
}

// The sample is longer than the data that the C library keeps buffered after a failed write.
TEST(TrainProgram, GoesOnWhenNobodyReadsItsLines) {
    const TemporaryFolder folder;
    const std::string run = folder / "run";
    const std::string command = fmt::format(
        "{{ '{}' --layers 1 --heads 2 --channels 16 --context 16 --batch-size 2 --checkpoint-every 0 --steps "
        "20 --val-every 0 --sample-every 5 "
        "--sample-tokens {} --out '{}' 2>'{}'; echo $? >'{}'; }} | head -n 1 >/dev/null",
        TRAIN_PROGRAM, simt::checked ? 20 : 5000, run, folder / "err", folder / "exit code");
    ASSERT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(read_file(folder / "exit code"), "0\n");
    EXPECT_EQ(metrics_of(run, "train").size(), 20u);
    EXPECT_EQ(metrics_of(run, "sample").size(), 4u);
    EXPECT_EQ(read_file(folder / "err"), "");
}

TEST(TrainProgram, AnotherRunIsNotOverwritten) {
    const TemporaryFolder folder;
    ASSERT_TRUE(succeeded(train("--steps 1 --val-every 0 --sample-every 0 --out " + folder / "run")));
    const std::string before = read_file(folder / "run/metrics.jsonl");
    EXPECT_TRUE(is_refused(train("--steps 1 --out " + folder / "run"), {"holds another run"}));
    EXPECT_EQ(read_file(folder / "run/metrics.jsonl"), before);
}

TEST(TrainProgram, FileNamesThatAreNotUtf8Work) {
    const TemporaryFolder folder;
    const std::string name = "\xff\xfe", run = folder / name + "run",
                      text = folder.write(name + ".txt", std::string(500, 'x')),
                      config = folder.write(name + ".toml", "lr = 0.5\n");
    const std::string common = fmt::format(
        "--train-data '{0}' --val-data '{0}' --config '{1}' --val-every 0 --sample-every 0 "
        "--batch-size 2 --warmup 1 --checkpoint-every 1 ",
        text, config);
    const std::string sizes = common + "--layers 1 --heads 2 --channels 16 --context 16 ";
    succeed(sizes + "--steps 1 --out '" + run + "'");
    ASSERT_EQ(metrics_of(run, "run").size(), 1u);
    EXPECT_EQ(metrics_of(run, "run").at(0).at("options").at("train-data"), folder / "\uFFFD\uFFFD.txt");
    succeed(sizes + "--steps 2 --resume auto --out '" + run + "'");
    EXPECT_EQ(metrics_of(run, "train").size(), 2u);
    succeed(common + "--steps 1 --init-from '" + run + "' --out '" + run + "-2'");
    const ProgramResult missing = train("--train-data '" + folder / name + "' --out " + folder / "run");
    EXPECT_EQ(refusal_of(missing), "train_gpt2: no file matches '" + folder / "\uFFFD\uFFFD" +
                                       "'; expected token shards or texts\n");
}

TEST(TrainProgram, APatternWithoutQuotesIsSeveralFiles) {
    const TemporaryFolder folder;
    for (const char* name : {"a.md", "b.md"}) folder.write(name, std::string(200, name[0]));
    const std::string run = folder / "run";
    const std::string options =
        "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 1 --steps 1 --sample-every 0";
    const std::string command = fmt::format("'{}' {} --val-data {}/a.md --out {} --train-data {}/*.md",
                                            TRAIN_PROGRAM, options, folder.path(), run, folder.path());
    ASSERT_TRUE(succeeded(run_program("/bin/sh", fmt::format("-c \"{}\"", command))));
    EXPECT_EQ(metrics_of(run, "run").at(0).at("options").at("train-data"),
              nlohmann::json({folder / "a.md", folder / "b.md"}));
    EXPECT_EQ(metrics_of(run, "run").at(0).at("options").at("val-data"), folder / "a.md");
    EXPECT_TRUE(succeeded(run_program(TRAIN_PROGRAM, fmt::format("--resume {} --steps 2", run))));
}

TEST(TrainProgram, OptionsFromAFile) {
    const TemporaryFolder folder;
    const std::string config =
        folder.write("run.toml", "steps = 2\nlr = 0.5\nval-every = 0\nsample-every = 0\nplan = false\n");
    ASSERT_TRUE(succeeded(train("--config " + config + " --lr 0.25 --out " + folder / "run")));
    const nlohmann::json options = metrics_of(folder / "run").at(0).at("options");
    EXPECT_EQ(options.at("steps"), 2);
    EXPECT_EQ(options.at("lr"), 0.25);  // the command line takes precedence
    EXPECT_EQ(options.at("plan"), false);
    EXPECT_EQ(options.at("nesterov"), false);
    const std::string wrong = folder.write("wrong.toml", "stepz = 2\n");
    EXPECT_EQ(train("--config " + wrong + " --out " + folder / "run2").exit_code, 2);
}

// The folder named by --out was said to hold the run, and was not there.
TEST(TrainProgram, ACompleteRunLeavesNothingForABranch) {
    const TemporaryFolder folder;
    const std::string run = folder / "run", branch = folder / "branch",
                      checkpoint = checkpoint_folder(run, 2);
    succeed(tiny_kept + "--steps 2 --out " + run);
    for (const std::string& from : {run, checkpoint}) {
        EXPECT_TRUE(
            is_refused(run_program(TRAIN_PROGRAM, "--resume " + from + " --out " + branch),
                       {checkpoint + " is the end of a run of 2 steps, which leaves none for " + branch}));
        EXPECT_FALSE(std::filesystem::exists(branch));
    }
    EXPECT_TRUE(says(run_program(TRAIN_PROGRAM, "--resume " + run).output, "nothing is left to do"));
}

// "--steps 2000 instead of 2" was said of a run whose length --tokens gave.
TEST(TrainProgram, ALengthThatIsNotGivenHasNoValue) {
    const TemporaryFolder folder;
    const std::string run = folder / "run";
    succeed(tiny_kept + "--steps 2 --out " + run);
    const ProgramResult result = run_program(TRAIN_PROGRAM, "--resume " + run + " --tokens 96");
    EXPECT_TRUE(says(result.output + result.errors, "computed from here on: --tokens 96 instead of none"));
    EXPECT_EQ(metrics_of(run, "run").back().at("options").at("steps"), "");
}

TEST(TrainProgram, ANameThatACheckpointCannotHoldIsAskedFor) {
    const TemporaryFolder folder;
    const std::string run = folder / "run", text = folder.write("\xFF.txt", std::string(2000, 'a'));
    succeed(tiny_kept + "--steps 2 --train-data " + text + " --out " + run);
    EXPECT_TRUE(is_refused(run_program(TRAIN_PROGRAM, "--resume " + run + " --steps 3"),
                           {"--train-data of the run in " + run + " is not UTF-8"}));
    succeed("--resume " + run + " --steps 3 --train-data " + text);
}

TEST(TrainProgram, ARateThatDropsAfterTheWarmupIsSaid) {
    const TemporaryFolder folder;
    int runs = 0;
    const auto plan = [&](const std::string& schedule) {
        const ProgramResult result =
            run_program(TRAIN_PROGRAM, tiny_kept + fmt::format("--steps 20 --warmup 10 --out {} {}",
                                                               folder / std::to_string(runs++), schedule));
        return result.output + result.errors;
    };
    const std::string note = "note: wsd begins to fall before the warmup ends at step 10";
    EXPECT_TRUE(says(plan("--schedule wsd --cooldown 0.9"), note));
    for (const char* other : {"--schedule wsd --cooldown 0.5", "--schedule linear", "--schedule cosine"})
        EXPECT_FALSE(says(plan(other), "note: "));
}

}  // namespace
