// What going on with a run, or with shards, removes, cuts and keeps.
#include "checkpoint_writer.h"
#include "restartable_shards.h"
#include "resume.h"
#include "temporary_folder.h"

namespace fs = std::filesystem;

// --out may name a folder that holds other things.
TEST(RunLeftovers, OnlyWhatARunLeftHalfWrittenIsRemoved) {
    const TemporaryFolder folder;
    fs::create_directories(folder / "checkpoints/step_00000010.tmp-0123abcd");
    fs::create_directories(folder / "photos.tmp-2024");
    const std::vector<std::string> ours = {"metrics.jsonl.tmp-00ff00ff", "checkpoints/step_00000010.tmp-0123abcd"};
    const std::vector<std::string> others = {"photos.tmp-2024", "letter.tmp-1", "letter.tmp-0123abcd", "metrics.jsonl.tmp-old",
                                             "checkpoints/mine.tmp-0123abcd"};
    for (const auto& name : {ours[0], others[1], others[2], others[3], others[4]}) folder.write(name, "x");
    ResumePoint from;
    from.run_folder = folder.path();
    prepare_run_folder(from, [](const std::string&) {});
    for (const std::string& name : ours) EXPECT_FALSE(fs::exists(folder / name)) << name;
    for (const std::string& name : others) EXPECT_TRUE(fs::exists(folder / name)) << name;
}

TEST(RunLeftovers, OnlyWhatTokenizeLeftHalfWrittenIsRemoved) {
    const TemporaryFolder folder;
    const std::vector<std::string> ours = {"a_train_000003.bin.tmp-0123abcd", "a_val_000000.bin.tmp-00ff00ff", "a_shards.json.tmp-76543210"};
    const std::vector<std::string> others = {"a_train_000003.bin.tmp-old", "a_train_notes.tmp-0123abcd", "b_train_000003.bin.tmp-0123abcd",
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
    EXPECT_NE(message_of<UsageError>([&] { RestartableShards{options}; }).find("another process is writing shards there"), std::string::npos);
}

TEST(RunLeftovers, AMetricsLineNestedAMillionDeepIsPassedOver) {
    const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    const std::string line = "{\"kind\":\"train\",\"step\":1}\n";
    EXPECT_EQ(metrics_up_to(line + "{\"kind\":\"train\",\"step\":" + deep + "}\n" + line, 1, true), line + line);
}

// Between the look at a folder and its lock, another process may have trained there and ended.
class FoundFolder : public testing::Test {
protected:
    void make(int step) {
        fs::create_directories(checkpoint_folder(run, step));
        write_state(checkpoint_folder(run, step), {.step = step, .batch_size = 1});
        std::ofstream(metrics_file(run), std::ios::app) << fmt::format("{{\"kind\":\"train\",\"step\":{}}}\n", step);
    }
    ResumePoint find(const std::string& resume, const std::string& out) {
        Options options;
        options.out = out;
        options.resume = resume;
        return find_resume_point(options, [](const std::string&) {});
    }
    void expect_refused(const ResumePoint& from) {
        const std::string before = read_file(metrics_file(run));
        const std::vector<CheckpointFolder> folders = checkpoint_folders(run);
        const std::string message = message_of<UsageError>([&] { prepare_run_folder(from, [](const std::string&) {}); });
        EXPECT_NE(message.find(from.run_folder + ": another process has written there"), std::string::npos) << message;
        EXPECT_EQ(read_file(metrics_file(run)), before);
        EXPECT_EQ(checkpoint_folders(run), folders);
    }
    TemporaryFolder folder;
    const std::string run = folder / "run", branch = folder / "branch";
};

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
    fs::remove_all(checkpoint_folder(run, 6));  // and no longer keeps that one
    expect_refused(newer);
}

TEST_F(FoundFolder, AnotherProcessBranchedOffIntoTheSameFolder) {
    make(3);
    const ResumePoint from = find(checkpoint_folder(run, 3), branch);
    {
        const FolderLock lock = prepare_run_folder(from, [](const std::string&) {});
    }
    expect_refused(from);
}

TEST_F(FoundFolder, NobodyWroteThere) {
    for (const int step : {3, 6}) make(step);
    fs::remove(checkpoint_folder(run, 6) + "/" + state_file_name);  // damaged
    {
        const FolderLock lock = prepare_run_folder(find("auto", run), [](const std::string&) {});
    }
    EXPECT_TRUE(fs::exists(checkpoint_folder(run, 6) + ".damaged"));
    make(6);
    {
        const FolderLock lock = prepare_run_folder(find(checkpoint_folder(run, 3), ""), [](const std::string&) {});
    }
    EXPECT_TRUE(fs::exists(checkpoint_folder(run, 6) + ".superseded"));
}

// A comparison with NaN is false: it would have stayed the best one for good.
TEST(Superseded, AValidationLossThatIsNotFiniteIsNeverTheBest) {
    const std::vector<SavedCheckpoint> saved = {{1, NAN}, {2, 3.0}, {3, 4.0}, {4, INFINITY}};
    EXPECT_EQ(superseded(saved, {.newest = 1}, 3), (std::vector<int>{1, 3}));
}
