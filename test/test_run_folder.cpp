// A run's folder: which checkpoint is resumed. With one wrong bit, a missing byte or a missing file, the
// one before is used, and a line reports that.
#include <cmath>

#include "temporary_folder.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"

namespace {

namespace fs = std::filesystem;

// A run with checkpoints of two small files each.
class RunFolder : public testing::Test {
protected:
    RunFolder() {
        for (const int step : {7, 12}) make(step);
    }
    void make(int step) {
        const std::string path = checkpoint_folder(run.path(), step);
        fs::create_directories(path);
        std::ofstream(path + "/model.safetensors") << "weights of step " << step;
        std::ofstream(path + "/config.json") << "{}";
        TrainingState state;
        state.step = step;
        state.optimizer_step = step - 1;
        state.batch_size = 3;
        state.val_loss = 1.0 / 3.0;
        state.options = {{"lr", 1e-3}, {"out", "not UTF-8: \xff"}};
        write_state(path, state);
    }
    std::optional<std::string> newest() {
        lines.clear();
        return newest_checkpoint(run.path(), [&](const std::string& line) { lines.push_back(line); });
    }
    void expect_passed_over(const std::string& file) {
        EXPECT_EQ(newest(), checkpoint_folder(run.path(), 7)) << file;
        ASSERT_EQ(lines.size(), 1u) << file;
        EXPECT_NE(lines[0].find("step 12 is passed over"), std::string::npos) << lines[0];
        EXPECT_NE(lines[0].find(file), std::string::npos) << lines[0];
    }

    TemporaryFolder run;
    std::vector<std::string> lines;
};

TEST_F(RunFolder, TheNewestWholeCheckpointCounts) {
    fs::create_directories(checkpoint_folder(run.path(), 20) + ".tmp-0123abcd");
    fs::create_directories(checkpoints_folder(run.path()) + "/step_21");
    EXPECT_EQ(newest(), checkpoint_folder(run.path(), 12));
    EXPECT_TRUE(lines.empty());
    const TrainingState state = whole_checkpoint(checkpoint_folder(run.path(), 12));
    EXPECT_EQ(state.step, 12);
    EXPECT_EQ(state.optimizer_step, 11);
    EXPECT_EQ(state.val_loss, 1.0 / 3.0);
    EXPECT_EQ(state.options.at("lr"), 1e-3);
    make(123456789);
    EXPECT_EQ(newest(), checkpoint_folder(run.path(), 123456789));
}

// JSON has no number for such a loss, and null means that nothing was measured.
TEST_F(RunFolder, AValidationLossThatIsNotFiniteIsNotAMissingOne) {
    const std::string path = checkpoint_folder(run.path(), 12);
    TrainingState state = read_state(path);
    for (const std::optional<double> loss :
         {std::optional<double>(), {2.5}, {NAN}, {INFINITY}, {-INFINITY}}) {
        state.val_loss = loss;
        fs::remove(path + "/state.json");
        write_state(path, state);
        const std::optional<double> read = whole_checkpoint(path).val_loss;
        ASSERT_EQ(read.has_value(), loss.has_value());
        if (!loss) continue;
        EXPECT_EQ(std::isnan(*read), std::isnan(*loss));
        if (!std::isnan(*loss)) { EXPECT_EQ(*read, *loss); }
    }
    EXPECT_NE(read_file(path + "/state.json").find("\"val_loss\": \"-inf\""), std::string::npos);
}

TEST_F(RunFolder, EveryFlippedBitIsSeen) {
    for (const std::string name : {"state.json", "model.safetensors", "config.json"}) {
        const std::string path = checkpoint_folder(run.path(), 12) + "/" + name, whole = read_file(path);
        for (size_t bit = 0; bit < 8 * whole.size(); bit++) {
            std::string flipped = whole;
            flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
            if (name == "state.json") { EXPECT_THROW(parse_state(path, flipped), UsageError) << bit; }
            if (bit % 41 != 0) continue;  // files are slow
            std::ofstream(path, std::ios::binary) << flipped;
            expect_passed_over(path);
        }
        std::ofstream(path, std::ios::binary) << whole;
    }
    EXPECT_EQ(newest(), checkpoint_folder(run.path(), 12));
}

TEST_F(RunFolder, TruncatedLongerAndMissingFilesAreSeen) {
    for (const std::string name : {"state.json", "model.safetensors", "config.json"}) {
        const std::string path = checkpoint_folder(run.path(), 12) + "/" + name, whole = read_file(path);
        for (size_t bytes = 0; bytes < whole.size(); bytes++) {
            if (name == "state.json") {
                EXPECT_THROW(parse_state(path, whole.substr(0, bytes)), UsageError) << bytes;
            }
            if (bytes % 7 != 0) continue;
            std::ofstream(path, std::ios::binary) << whole.substr(0, bytes);
            expect_passed_over(path);
        }
        std::ofstream(path, std::ios::binary) << whole + " ";
        expect_passed_over(path);
        fs::remove(path);
        expect_passed_over(path);
        std::ofstream(path, std::ios::binary) << whole;
    }
}

TEST_F(RunFolder, NoWholeCheckpointIsNotNoCheckpoint) {
    for (const int step : {7, 12}) fs::remove(checkpoint_folder(run.path(), step) + "/config.json");
    EXPECT_NE(message_of<UsageError>([&] { newest(); }).find("none of its 2 checkpoints is whole"),
              std::string::npos);
    EXPECT_EQ(lines.size(), 2u);
    const TemporaryFolder empty;
    EXPECT_EQ(newest_checkpoint(empty.path()), std::nullopt);
    EXPECT_EQ(newest_checkpoint(empty / "nowhere"), std::nullopt);
}

TEST_F(RunFolder, HostileStatesAreRefused) {
    EXPECT_THROW(parse_state("state.json", ""), UsageError);
    EXPECT_THROW(parse_state("state.json", "[]"), UsageError);
    EXPECT_THROW(parse_state("state.json", std::string(1000000, '[')), UsageError);
    EXPECT_THROW(parse_state("state.json", "{\"xxh3_64\": 5}"), UsageError);
    EXPECT_THROW(parse_state("state.json", "{\"xxh3_64\": \"0123456789abcdef\"}"), UsageError);
}

TEST_F(RunFolder, KnowsRunsAndCheckpointsByTheirPlace) {
    EXPECT_TRUE(is_run_folder(run.path()));
    EXPECT_FALSE(is_run_folder(checkpoint_folder(run.path(), 7)));
    EXPECT_TRUE(is_checkpoint_folder(checkpoint_folder(run.path(), 7)));
    EXPECT_TRUE(is_checkpoint_folder(checkpoint_folder(run.path(), 7) + "/"));
    fs::remove(checkpoint_folder(run.path(), 7) + "/state.json");
    EXPECT_TRUE(is_checkpoint_folder(checkpoint_folder(run.path(), 7)));  // a damaged one
    EXPECT_FALSE(is_checkpoint_folder(run.path()));
    EXPECT_FALSE(is_checkpoint_folder(run / "nowhere"));
}

}  // namespace
