// What going on with a run removes, cuts and keeps.
#include "checkpoint_writer.h"
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

TEST(RunLeftovers, AMetricsLineNestedAMillionDeepIsPassedOver) {
    const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    const std::string line = "{\"kind\":\"train\",\"step\":1}\n";
    EXPECT_EQ(metrics_up_to(line + "{\"kind\":\"train\",\"step\":" + deep + "}\n" + line, 1, true), line + line);
}

// A comparison with NaN is false: it would have stayed the best one for good.
TEST(Superseded, AValidationLossThatIsNotFiniteIsNeverTheBest) {
    const std::vector<SavedCheckpoint> saved = {{1, 0, NAN}, {2, 0, 3.0}, {3, 0, 4.0}, {4, 0, INFINITY}};
    EXPECT_EQ(superseded(saved, {.newest = 1}), (std::vector<int>{1, 3}));
}
