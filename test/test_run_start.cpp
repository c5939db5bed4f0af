// What a run says, plans, makes and refuses before it trains.
#include <chrono>
#include <set>
#include <thread>

#include "metrics_lines.h"
#include "program.h"
#include "run_folder.h"
#include "simt/target.h"

namespace {

namespace fs = std::filesystem;

const std::string tiny = "--layers 1 --heads 2 --channels 16 --context 16 --batch-size 2 --val-every 0 --sample-every 0 ";

TEST(RunStart, TwoRunsOfOneSecondHadOneFolder) {
    const TemporaryFolder folder;
    const std::string path = folder / "runs/20260101-000000";
    std::vector<std::string> made(8);
    {
        std::vector<std::jthread> processes;
        for (std::string& name : made) processes.emplace_back([&] { name = make_new_folder(path); });
    }
    EXPECT_EQ(std::set<std::string>(made.begin(), made.end()),
              (std::set<std::string>{path, path + "-2", path + "-3", path + "-4", path + "-5", path + "-6", path + "-7", path + "-8"}));
    for (const std::string& name : made) EXPECT_TRUE(fs::is_directory(name)) << name;
    folder.write("file", "");
    EXPECT_EQ(message_of<UsageError>([&] { make_new_folder(folder / "file/run"); }).find(folder / "file/run: cannot be made: "), 0u);
}

TEST(RunStart, TwoRunsStartedAtOnceBothTrain) {
    const TemporaryFolder folder;
    const std::string command =
        fmt::format("for i in 1 2 3; do '{}' {} --checkpoint-every 0 --warmup 1 --steps 2 >$i.txt & done; wait", TRAIN_PROGRAM, tiny);
    ASSERT_EQ(std::system(fmt::format("cd '{}'; {}", folder.path(), command).c_str()), 0);
    size_t runs = 0;
    for (const auto& run : fs::directory_iterator(folder / "runs")) {
        EXPECT_EQ(metrics_of(run.path(), "train").size(), 2u) << run.path();
        runs++;
    }
    EXPECT_EQ(runs, 3u);
    for (const char* file : {"1.txt", "2.txt", "3.txt"})
        EXPECT_NE(read_file(folder / file).find("done; the run is in runs/"), std::string::npos) << read_file(folder / file);
}

TEST(RunStart, ARunWasBegunAmongAnotherRunsCheckpoints) {
    const TemporaryFolder folder;
    const std::string run = folder / "run", checkpoint = checkpoint_folder(run, 7);
    fs::create_directories(checkpoint);
    folder.write("run/metrics.jsonl", "");
    std::ofstream(checkpoint + "/state.json") << "{}";
    for (const std::string& out : {checkpoint, checkpoint + "/", run + "/checkpoints", run + "/checkpoints/"}) {
        const ProgramResult result = run_program(TRAIN_PROGRAM, tiny + "--steps 1 --out " + out);
        EXPECT_EQ(result.exit_code, 2);
        EXPECT_EQ(result.errors, "train_gpt2: --out " + out + " is where a run has its checkpoints; expected a folder for a run of its own\n");
    }
    // A folder that only happens to have this name.
    EXPECT_EQ(run_program(TRAIN_PROGRAM, tiny + "--steps 1 --checkpoint-every 0 --out " + folder / "checkpoints").exit_code, 0);
}

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
        {large + "--context 1048576 --batch-size auto --total-batch 1099511627776", 2, "not even one sequence of 1048576 tokens fits"},
        {large + "--batch-size auto --context 1024 --total-batch 752777625600 --device-memory 500000T", 0, "step: 752777625600 tokens = "},
        {large + "--world-size 65536 --zero 1 --device-memory 900000T --batch-size 16 --context 1024", 0, "65536 processes"},
        {"--plan --batch-size 1048576 --context 2048", 2, "expected at most 2147483647"},
        {"--plan --model gpt3:c12288 --batch-size auto --total-batch 3145728 --world-size 1536 --zero 1 --device-memory 900G", 0, "1536 processes"},
    };
    for (const auto& c : cases) {
        const auto begin = std::chrono::steady_clock::now();
        const ProgramResult result = run_program(TRAIN_PROGRAM, c.arguments);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        EXPECT_EQ(result.exit_code, c.exit_code) << c.arguments << result.output << result.errors;
        EXPECT_NE((result.output + result.errors).find(c.said), std::string::npos) << c.arguments << result.output << result.errors;
        // A second on an idle machine; minutes before.
        if (!simt::checked) EXPECT_LT(seconds.count(), 20) << c.arguments;
    }
}

TEST(RunStart, APlanThatNobodyCouldReadWasNoError) {
    for (const char* to : {">/dev/full", ">&-"}) {
        const ProgramResult result = run_program("/bin/sh", fmt::format("-c \"'{}' --plan {}\"", TRAIN_PROGRAM, to));
        EXPECT_EQ(result.exit_code, 1) << to;
        EXPECT_EQ(result.errors, "train_gpt2: the plan cannot be written to standard output\n") << to;
    }
}

}  // namespace
