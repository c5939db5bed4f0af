// Resuming a run, or continuing shards: the files that are removed, cut and kept.
#include "temporary_folder.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/data/restartable_shards.h"
#include "trainer/run/logger.h"
#include "trainer/run/resume.h"

namespace fs = std::filesystem;

// --out may name a folder that holds other things.
TEST(RunLeftovers, OnlyWhatARunLeftHalfWrittenIsRemoved) {
    const TemporaryFolder folder;
    fs::create_directories(folder / "checkpoints/step_00000010.tmp-0123abcd");
    fs::create_directories(folder / "photos.tmp-2024");
    const std::vector<std::string> ours = {"metrics.jsonl.tmp-00ff00ff",
                                           "checkpoints/step_00000010.tmp-0123abcd"};
    const std::vector<std::string> others = {"photos.tmp-2024", "letter.tmp-1", "letter.tmp-0123abcd",
                                             "metrics.jsonl.tmp-old", "checkpoints/mine.tmp-0123abcd"};
    for (const auto& name : {ours[0], others[1], others[2], others[3], others[4]}) folder.write(name, "x");
    ResumePoint from;
    from.run_folder = folder.path();
    prepare_run_folder(from, [](const std::string&) {});
    for (const std::string& name : ours) EXPECT_FALSE(fs::exists(folder / name)) << name;
    for (const std::string& name : others) EXPECT_TRUE(fs::exists(folder / name)) << name;
}

TEST(RunLeftovers, OnlyWhatTokenizeLeftHalfWrittenIsRemoved) {
    const TemporaryFolder folder;
    const std::vector<std::string> ours = {"a_train_000003.bin.tmp-0123abcd", "a_val_000000.bin.tmp-00ff00ff",
                                           "a_shards.json.tmp-76543210"};
    const std::vector<std::string> others = {"a_train_000003.bin.tmp-old", "a_train_notes.tmp-0123abcd",
                                             "b_train_000003.bin.tmp-0123abcd",
                                             "a_train_000003.bin.tmp-0123abcd.txt"};
    for (const auto* names : {&ours, &others}) {
        for (const std::string& name : *names) folder.write(name, "x");
    }
    RestartableShardsOptions options;
    options.folder = folder.path();
    options.prefix = "a_";
    const RestartableShards shards(options);
    for (const std::string& name : ours) EXPECT_FALSE(fs::exists(folder / name)) << name;
    for (const std::string& name : others) EXPECT_TRUE(fs::exists(folder / name)) << name;
    EXPECT_NE(message_of<UsageError>([&] {
                  RestartableShards{options};
              }).find("another process is writing shards there"),
              std::string::npos);
}

TEST(RunLeftovers, AMetricsLineNestedAMillionDeepIsPassedOver) {
    const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    const std::string line = "{\"kind\":\"train\",\"step\":1}\n";
    EXPECT_EQ(metrics_up_to(line + "{\"kind\":\"train\",\"step\":" + deep + "}\n" + line, 1, true),
              line + line);
}

// Between the check of a folder and its lock, another process may have trained there and ended.
class FoundFolder : public testing::Test {
protected:
    void make(int step) {
        fs::create_directories(checkpoint_folder(run, step));
        write_state(checkpoint_folder(run, step), {.step = step, .batch_size = 1});
        std::ofstream(metrics_file(run), std::ios::app)
            << fmt::format("{{\"kind\":\"train\",\"step\":{}}}\n", step);
    }
    ResumePoint find(const std::string& resume, const std::string& out) {
        Options options;
        options.output.folder = out;
        options.output.resume = resume;
        return find_resume_point(options, [](const std::string&) {});
    }
    void unname(int step, const std::string& random) {
        fs::rename(checkpoint_folder(run, step), checkpoint_folder(run, step) + ".tmp-" + random);
    }
    void prepare(const std::string& resume, const std::string& out) {
        ResumePoint from = find(resume, out);
        prepare_run_folder(from, [&](const std::string& line) { lines.push_back(line); });
    }
    void expect_refused(ResumePoint from) {
        const std::string before = read_file(metrics_file(run));
        const std::vector<CheckpointFolder> folders = checkpoint_folders(run);
        const std::string message =
            message_of<UsageError>([&] { prepare_run_folder(from, [](const std::string&) {}); });
        EXPECT_NE(message.find(from.run_folder + ": another process has written there"), std::string::npos)
            << message;
        EXPECT_EQ(read_file(metrics_file(run)), before);
        EXPECT_EQ(checkpoint_folders(run), folders);
    }
    TemporaryFolder folder;
    std::vector<std::string> lines;
    const std::string run = folder / "run", branch = folder / "branch";
};

TEST_F(FoundFolder, ANameThatARunOfTheSameSecondHasIsStillProposed) {
    const fs::path before = fs::current_path();
    fs::current_path(folder.path());
    ResumePoint point;
    std::string taken;
    do {  // repeated if a second ends in between
        taken = new_run_folder();
        fs::create_directories(taken);
        std::ofstream(metrics_file(taken)) << "{}\n";
        point = find("none", "");
    } while (point.run_folder != taken);
    EXPECT_TRUE(point.is_proposed);
    EXPECT_EQ(make_new_folder(point.run_folder), taken + "-2");
    fs::current_path(before);
}

TEST_F(FoundFolder, AnotherProcessBeganARunThere) {
    const ResumePoint none = find("none", run), automatic = find("auto", run);
    make(3);
    expect_refused(none);
    expect_refused(automatic);
}

TEST_F(FoundFolder, AnotherProcessWentOnWithTheRun) {
    fs::create_directories(run);
    std::ofstream(metrics_file(run)) << "{\"kind\":\"run\"}\n";
    const ResumePoint without_checkpoint = find("auto", run);
    make(3);
    expect_refused(without_checkpoint);
    const ResumePoint newest = find("auto", run), given = find(checkpoint_folder(run, 3), "");
    make(6);
    expect_refused(newest);
    expect_refused(given);
    const ResumePoint newer = find("auto", run);
    fs::remove_all(checkpoint_folder(run, 6));  // the run no longer keeps that checkpoint
    expect_refused(newer);
}

TEST_F(FoundFolder, AnotherProcessBranchedOffIntoTheSameFolder) {
    make(3);
    ResumePoint from = find(checkpoint_folder(run, 3), branch);
    {
        const FolderLock lock = prepare_run_folder(from, [](const std::string&) {});
    }
    expect_refused(from);
}

TEST_F(FoundFolder, NobodyWroteThere) {
    for (const int step : {3, 6}) make(step);
    fs::remove(checkpoint_folder(run, 6) + "/" + state_file_name);  // damaged
    prepare("auto", run);
    EXPECT_TRUE(fs::exists(checkpoint_folder(run, 6) + ".damaged"));
    make(6);
    prepare(checkpoint_folder(run, 3), "");
    EXPECT_TRUE(fs::exists(checkpoint_folder(run, 6) + ".superseded"));
}

// The state left by a process that is killed when only the final name is missing.
TEST_F(FoundFolder, AWholeCheckpointWithoutItsNameIsTakenBack) {
    for (const int step : {3, 6, 9}) make(step);
    unname(6, "0123abcd");
    unname(9, "0123abce");
    fs::remove(checkpoint_folder(run, 9) + ".tmp-0123abce/" + state_file_name);  // not yet complete
    ResumePoint from = find("auto", run);
    EXPECT_EQ(from.step(), 6);
    prepare_run_folder(from, [](const std::string&) {});
    EXPECT_EQ(from.checkpoint, checkpoint_folder(run, 6));
    EXPECT_EQ(checkpoint_folders(run).size(), 2u);
    EXPECT_EQ(checkpoint_folders(run).back().step, 6);
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_folder(run)), {}), 2) << "something is left";
}

// On file systems that cannot exchange names, the older checkpoint loses its name first, so a kill leaves
// two without a name.
TEST_F(FoundFolder, OfTwoWithoutANameTheOneWithItsEvaluationIsTakenBack) {
    for (const std::string random : {"0000000a", "0000000b", "0000000c"}) {
        make(4);
        if (random != "0000000b") {
            fs::remove(checkpoint_folder(run, 4) + "/" + state_file_name);
            write_state(checkpoint_folder(run, 4), {.step = 4, .batch_size = 1, .evaluated = false});
        }
        unname(4, random);
    }
    prepare("auto", run);
    EXPECT_TRUE(read_state(checkpoint_folder(run, 4)).evaluated);
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_folder(run)), {}), 1) << "something is left";
}

TEST_F(FoundFolder, ALeftoverWhoseNameIsTakenIsRemoved) {
    make(3);
    unname(3, "0123abcd");
    make(3);
    prepare("auto", run);
    EXPECT_EQ(checkpoint_folders(run).size(), 1u);
    EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_folder(run)), {}), 1) << "something is left";
}

TEST_F(FoundFolder, ARunIsNotCompleteBeforeItsLastCheckpointHasItsName) {
    make(3);
    EXPECT_TRUE(find("auto", run).is_complete(3));
    unname(3, "0123abcd");
    EXPECT_FALSE(find("auto", run).is_complete(3));
}

TEST_F(FoundFolder, ABranchLeavesACheckpointWithoutItsNameAsItIs) {
    make(3);
    unname(3, "0123abcd");
    prepare(run, branch);
    EXPECT_TRUE(fs::exists(checkpoint_folder(run, 3) + ".tmp-0123abcd"));
    EXPECT_FALSE(fs::exists(checkpoint_folder(branch, 3)));
}

TEST_F(FoundFolder, StepsWithoutALineInTheMetricsAreNamed) {
    for (const int step : {1, 4, 5, 7}) make(step);
    prepare("auto", run);
    const std::string said = metrics_file(run) + " has no lines for these steps: 2 to 3, 6";
    EXPECT_EQ(std::count(lines.begin(), lines.end(), said), 1) << lines.front();
    fs::remove(metrics_file(run));
    prepare("auto", run);
    EXPECT_NE(lines[lines.size() - 2].find(" has no lines for these steps: 1 to 7"), std::string::npos);
    lines.clear();
    for (int step = 1; step <= 7; step++) {
        std::ofstream(metrics_file(run), std::ios::app)
            << fmt::format("{{\"kind\":\"train\",\"step\":{}}}\n", step);
    }
    prepare("auto", run);
    EXPECT_EQ(lines.size(), 1u) << lines.front();
}

// A comparison with NaN is false, so it would have remained the best one forever.
TEST(Superseded, AValidationLossThatIsNotFiniteIsNeverTheBest) {
    const std::vector<SavedCheckpoint> saved = {{1, NAN}, {2, 3.0}, {3, 4.0}, {4, INFINITY}};
    EXPECT_EQ(superseded(saved, {.newest = 1}, 3), (std::vector<int>{1, 3}));
}
