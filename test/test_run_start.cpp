// A run before its first step: its messages, its plan, its folder, and the errors that stop it there
#include <set>
#include <thread>

#include "kernels/simt/target.h"
#include "metrics_lines.h"
#include "program.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/run/disk_fit.h"
#include "write_shard.h"

namespace {

namespace fs = std::filesystem;

const std::string tiny =
    "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 2 --val-every 0 --sample-every 0 ";

// A shard with an invalid first token: training is rejected after all other checks.
std::string shard_that_is_refused(const TemporaryFolder& folder) {
    return write_shard(folder, "train.bin", std::vector<Token>(401, 999));
}

TEST(RunStart, TwoRunsOfOneSecondHadOneFolder) {
    const TemporaryFolder folder;
    const std::string path = folder / "runs/20260101-000000";
    std::vector<std::string> made(8);
    {
        std::vector<std::jthread> processes;
        for (std::string& name : made) processes.emplace_back([&] { name = make_new_folder(path); });
    }
    EXPECT_EQ(std::set<std::string>(made.begin(), made.end()),
              (std::set<std::string>{path, path + "-2", path + "-3", path + "-4", path + "-5", path + "-6",
                                     path + "-7", path + "-8"}));
    for (const std::string& name : made) EXPECT_TRUE(fs::is_directory(name)) << name;
    folder.write("file", "");
    EXPECT_EQ(message_of<UsageError>([&] {
                  make_new_folder(folder / "file/run");
              }).find(folder / "file/run: cannot be made: "),
              0u);
}

// Sizes that took minutes or overflowed 64 bits.
TEST(RunStart, PlansOfAbsurdSizesTookMinutes) {
    const std::string large = "--plan --layers 4096 --channels 131072 --heads 4096 --vocab 65536 ";
    const struct {
        std::string arguments;
        int exit_code;
        const char* said;
    } cases[] = {
        {large, 2, "are free; a smaller model is needed"},
        {large + "--context 1048576 --batch-size 2047", 2, "the run needs over 1 EiB"},
        {large + "--device-memory 1000000T", 0, " parameters"},
        {large + "--context 1048576 --batch-size auto --total-batch 1099511627776", 2,
         "not even one sequence of 1048576 tokens fits"},
        {large + "--batch-size auto --context 1024 --total-batch 752777625600 --device-memory 500000T", 0,
         "step: 752777625600 tokens = "},
        {large + "--world-size 65536 --zero 1 --device-memory 900000T --batch-size 16 --context 1024", 0,
         "65536 processes"},
        {"--plan --batch-size 1048576 --context 2048", 2, "expected at most 2147483647"},
        {"--plan --model gpt3:c12288 --batch-size auto --total-batch 3145728 --world-size 1536 --zero 1 "
         "--device-memory 9000G",
         0, "1536 processes"},
    };
    for (const auto& c : cases) {
        // About a second of work on any machine; it was minutes.
        const ProgramResult result =
            run_program(TRAIN_PROGRAM, c.arguments, simt::checked ? "cd /" : "cd /; ulimit -t 30");
        EXPECT_EQ(result.exit_code, c.exit_code) << c.arguments << result.output << result.errors;
        EXPECT_TRUE(says((result.output + result.errors), c.said))
            << c.arguments << result.output << result.errors;
    }
}

TEST(RunStart, APlanOfSeveralProcessesSaysWhatTheySend) {
    const auto plan = [](const std::string& options) {
        const ProgramResult result =
            run_program(TRAIN_PROGRAM, "--dtype bf16 --plan --device-memory 900G " + options);
        EXPECT_TRUE(succeeded(result));
        return result.output;
    };
    const std::string gpt2 = "--model gpt2 --batch-size 8 --total-batch 524288 --world-size 64 ",
                      plain = plan(gpt2), sharded = plan(gpt2 + "--zero 1 --reduce-dtype bf16"),
                      xl = "--model gpt2-xl --batch-size 1 --total-batch 1048576 --world-size ";
    // Twice 63 of 64 parts of the gradients. Padding adds less than 0.2 %, the gaps of checked builds more.
    const double sent = number_in(plain, " buckets, ", " MiB of gradients (fp32, all-reduce)\n"),
                 least = 2 * 63.0 / 64 * 4 * 124'439'808 / 0x1p20;
    EXPECT_GE(sent, least - 0.1);
    if (!simt::checked) { EXPECT_LE(sent, 1.002 * least); }
    // A reduce-scatter of bf16 is a quarter of it, and so is the all-gather.
    const std::string half = " MiB of gradients (bf16, reduce-scatter) and ";
    EXPECT_NEAR(number_in(sharded, " buckets, ", half), sent / 4, 0.1);
    EXPECT_NEAR(number_in(sharded, half, " MiB of parameters (bf16, all-gather)\n"), sent / 4, 0.1);
    // ZeRO-1 divides the optimizer's state, to the padding of the parts.
    const std::string state = "optimizer state (fp32)";
    EXPECT_NEAR(number_in(sharded, state, " MiB"), number_in(plain, state, " MiB") / 64, 0.1);
    // Many processes communicate whole layers; else the latency of a ring would be paid every few MiB.
    EXPECT_GT(number_in(plan(xl + "8"), "in a step, in ", " buckets"), 3 * 48);
    EXPECT_EQ(number_in(plan(xl + "1024"), "in a step, in ", " buckets"), 48 + 2);
    EXPECT_FALSE(says(plan(""), "processes"));
}

TEST(RunStart, APlanSaysTheWorkOfAToken) {
    const std::string gpt2 = "--model gpt2 --batch-size 64 --plan --device-memory 79G --dtype bf16 ";
    const double work = 6.0 * (124'439'808 + 12 * 768 * 1024);
    for (const auto& [more, factor] : {std::pair("", 1.0), std::pair("--recompute block", 4.0 / 3)}) {
        const std::string plan = run_program(TRAIN_PROGRAM, gpt2 + more).output;
        EXPECT_NEAR(number_in(plan, "\nwork: ", " FLOP a token\n"), factor * work, 0.5) << plan;
    }
}

TEST(RunStart, APlanThatNobodyCouldReadWasNoError) {
    for (const char* to : {">/dev/full", ">&-"}) {
        const ProgramResult result =
            run_program("/bin/sh", fmt::format("-c \"'{}' --plan {}\"", TRAIN_PROGRAM, to));
        EXPECT_EQ(result.exit_code, 1) << to;
        EXPECT_EQ(result.errors, "train_gpt2: the plan cannot be written to standard output\n") << to;
    }
}

TEST(RunStart, AWarmupLongerThanTheRunWasNotSaid) {
    const TemporaryFolder folder;
    const auto said = [&](const std::string& more, const std::string& out) {
        const ProgramResult result = run_program(
            TRAIN_PROGRAM, tiny + "--checkpoint-every 0 --warmup 8 " + more + " --out " + folder / out);
        EXPECT_TRUE(succeeded(result));
        return result.output;
    };
    const std::string longer = said("--steps 4", "longer"), not_longer = said("--steps 8", "exact");
    const size_t place = longer.find(
        "note: the warmup of 8 steps is longer than the run of 4; the learning rate rises to 0.0005 instead "
        "of 0.001\n");
    EXPECT_LT(place, longer.find("step 1/4")) << longer;
    EXPECT_FALSE(says(not_longer, "the warmup of"));
    EXPECT_DOUBLE_EQ(metrics_of(folder / "longer", "train").back().at("lr").get<double>(), 0.0005);
}

TEST(RunStart, CheckpointsThatWillNotFitTheDiskWereNoticedWhenItWasFull) {
    constexpr size_t gib = size_t{1} << 30;
    EXPECT_EQ(check_disk("runs/a", 2 * gib, 4, 9 * gib), "");
    EXPECT_EQ(check_disk("runs/a", 2 * gib, 8, 15 * gib),
              "note: up to 8 checkpoints of 2048.0 MiB need 16.1 GiB, but the disk of runs/a has 15.0 GiB "
              "free; when it is full, newer ones are not "
              "written");
    EXPECT_EQ(message_of<UsageError>([] { check_disk("runs/a", 20 * gib, 1, 15 * gib); }),
              "--out runs/a: a checkpoint needs 20.0 GiB on the disk, which has 15.0 GiB free; expected room "
              "for one, or --checkpoint-every 0");
    EXPECT_EQ(check_disk("runs/a", size_t{1} << 60, 0, size_t{1} << 61), "");
    // A checkpoint is written if and only if there is that much room at the start (checkpoint.h).
    constexpr size_t tensors = 10 << 20, beside = 24 << 20;
    EXPECT_EQ(check_disk("runs/a", tensors, 1, tensors + beside), "");
    EXPECT_THROW(check_disk("runs/a", tensors, 1, tensors + beside - 1), UsageError);
    // The numbers of a disk that no program can fill.
    const TemporaryFolder folder;
    const std::string options = tiny + "--tokenizer byte --vocab 256 --steps 1000000000 --train-data " +
                                shard_that_is_refused(folder);
    const ProgramResult much = run_program(
        TRAIN_PROGRAM, options + " --checkpoint-every 1 --keep 900000000 --out " + folder / "new/run");
    EXPECT_TRUE(is_refused(much, {"token 999"}));
    EXPECT_TRUE(says(much.output, "note: up to 900000001 checkpoints of "));
    EXPECT_FALSE(fs::exists(folder / "new"));
    const ProgramResult little = run_program(TRAIN_PROGRAM, options + " --out " + folder / "new/run");
    EXPECT_FALSE(says(little.output, "note: up to"));
}

TEST(RunStart, CheckpointsOnTheDiskAtOnce) {
    Options o;
    o.output.checkpoint_every = 100, o.output.keep = 2, o.output.keep_every = 0, o.evaluation.val_every = 0;
    EXPECT_EQ(most_checkpoints(o, 0, 1000), 3u);  // two, and the one that is being written
    EXPECT_EQ(most_checkpoints(o, 0, 150), 2u);   // of steps 100 and 150
    EXPECT_EQ(most_checkpoints(o, 90, 100), 1u);
    o.evaluation.val_every = 100;  // the best validated one too
    EXPECT_EQ(most_checkpoints(o, 0, 1000), 4u);
    o.output.keep_every = 500;
    EXPECT_EQ(most_checkpoints(o, 0, 2000), 8u);
    EXPECT_EQ(most_checkpoints(o, 1000, 2000), 6u);
    o.output.keep_every = 150;  // only every third of these steps has a checkpoint
    EXPECT_EQ(most_checkpoints(o, 0, 1000), 7u);
    o.output.keep = 1000;
    EXPECT_EQ(most_checkpoints(o, 0, 1000), 10u);
    const std::optional<size_t> free = free_bytes("/none/of/these"), of_root = free_bytes("/");
    ASSERT_TRUE(free && of_root);
    EXPECT_GT(*of_root, 0u);
}

}  // namespace
