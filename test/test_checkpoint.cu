// Checkpoints as files: their contents after loading, which of them are kept, and the effects of damage
// and full disks.
#include <sys/resource.h>

#include <csignal>
#include <limits>

#include "model.cuh"
#include "system/host_allocator.h"
#include "temporary_folder.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/distributed/single_process.h"
#include "trainer/run/resume.h"

namespace {

namespace fs = std::filesystem;

const HostAllocator pinned{simt::pinned_malloc, simt::pinned_free};

// The reference model after some steps.
template <class T>
std::unique_ptr<Model<T>> trained_model(int updates) {
    auto model = reference_model<T>(reference("model"));
    const SafetensorsFile dump = reference("trajectory");
    const std::vector<int> x = dump.ints("x"), y = dump.ints("y");
    for (int s = 0; s < updates; s++) {
        model->forward(sequences(x, y, reference_T, s * reference_B, reference_B));
        model->backward();
        model->update(reference_adamw);
    }
    return model;
}

TrainingState state_at(int step) {
    TrainingState state;
    state.step = step;
    state.last_finite_step = step;
    state.batch_size = reference_B;
    return state;
}

class Checkpoint : public testing::Test {
protected:
    template <class T>
    CheckpointWriter writer(const Model<T>& model, KeepPolicy keep = {}) {
        return CheckpointWriter(model, alone, {run.path(), *byte, keep}, pinned,
                                [&](const std::string& line) { lines.push_back(line); });
    }
    SingleProcess alone;
    TemporaryFolder run;
    const std::unique_ptr<Tokenizer> byte = make_tokenizer("byte");
    std::vector<std::string> lines;
};

template <class T>
void expect_same_state(Model<T>& loaded, Model<T>& saved) {
    for (const Tensor& t : saved.table().tensors())
        EXPECT_EQ(loaded.parameter(t), saved.parameter(t)) << t.name;
    EXPECT_EQ(loaded.optimizer_step(), saved.optimizer_step());
    for (const std::string& buffer : saved.optimizer_buffers()) {
        std::vector<float> ours(saved.table().elements()), theirs(saved.table().elements());
        saved.read_optimizer(buffer, ours.data());
        loaded.read_optimizer(buffer, theirs.data());
        for (const Tensor& t : saved.table().tensors()) {
            for (size_t i = t.offset; i < t.offset + t.elements; i++)
                ASSERT_EQ(theirs[i], ours[i]) << buffer << " of " << t.name;
        }
    }
}

template <class T>
void expect_round_trip(const std::string& run) {
    const auto saved = trained_model<T>(3);
    SingleProcess alone;
    const auto byte = make_tokenizer("byte");
    CheckpointWriter writer(*saved, alone, {run, *byte, {}}, pinned, [](const std::string&) {});
    writer.save(*saved, state_at(5));
    ASSERT_TRUE(writer.finish());
    const TrainingState state = whole_checkpoint(checkpoint_folder(run, 5));
    EXPECT_EQ(state.optimizer_step, 3);
    Model<T> loaded(
        make_family<T>(reference_config),
        {.B = reference_B, .T = reference_T, .total_batch = reference_B * reference_T, .seed = 9});
    loaded.allocate();
    load_checkpoint(loaded, checkpoint_folder(run, 5), state);
    expect_same_state(loaded, *saved);
}
TEST_F(Checkpoint, BringsBackEveryBit) { expect_round_trip<float>(run.path()); }
TEST_F(Checkpoint, Bf16BringsBackEveryBit) { expect_round_trip<bfloat16>(run.path()); }

TEST_F(Checkpoint, TheStateOfAnotherOptimizerIsRefused) {
    const auto model = trained_model<float>(1);
    CheckpointWriter w = writer(*model);
    w.save(*model, state_at(1));
    ASSERT_TRUE(w.finish());
    const auto read = [&](const TensorTable& table, const std::vector<std::string>& buffers) {
        read_optimizer_state(
            checkpoint_folder(run.path(), 1), table, buffers,
            [](const std::string& buffer, const float*) { ADD_FAILURE() << buffer << " was handed out"; });
    };
    for (const std::vector<std::string>& buffers :
         {std::vector<std::string>{"exp_avg"}, std::vector<std::string>{"exp_avg", "momentum_buffer"}}) {
        EXPECT_TRUE(says(message_of<UsageError>([&] { read(model->table(), buffers); }), "optimizer_0000"));
    }
    EXPECT_THROW(read(table_of({131, 33, 2, 3, 48}), {"exp_avg", "exp_avg_sq"}), UsageError);
}

// test_run_folder.cpp changes every bit of such a file.
TEST_F(Checkpoint, OneWrongBitInAnyFileLeavesTheOneBefore) {
    const auto model = trained_model<float>(1);
    CheckpointWriter w = writer(*model);
    for (const int step : {1, 2}) w.save(*model, state_at(step));
    ASSERT_TRUE(w.finish());
    int files = 0;
    for (const auto& entry : fs::directory_iterator(checkpoint_folder(run.path(), 2))) {
        std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
        const int first = file.get();
        file.seekp(0).put(static_cast<char>(first ^ 4)).flush();
        lines.clear();
        EXPECT_EQ(newest_checkpoint(run.path(), [&](const std::string& line) { lines.push_back(line); }).path,
                  checkpoint_folder(run.path(), 1));
        ASSERT_EQ(lines.size(), 1u);
        EXPECT_TRUE(says(lines[0], entry.path()));
        file.seekp(0).put(static_cast<char>(first)).flush();
        files++;
    }
    EXPECT_EQ(files, 7);
    EXPECT_EQ(newest_checkpoint(run.path()).state.step, 2);
}

TEST_F(Checkpoint, AFullDiskCostsOneCheckpoint) {
    const auto model = trained_model<float>(1);
    CheckpointWriter w = writer(*model);
    w.save(*model, state_at(1));
    ASSERT_TRUE(w.finish());
    rlimit unlimited;
    getrlimit(RLIMIT_FSIZE, &unlimited);
    std::signal(SIGXFSZ, SIG_IGN);
    // within the smallest, a middling and the largest file
    for (const rlim_t bytes : {rlim_t{100}, rlim_t{5000}, rlim_t{100000}}) {
        const rlimit limited = {bytes, unlimited.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limited);
        w.save(*model, state_at(2));
        const bool written = w.finish();
        setrlimit(RLIMIT_FSIZE, &unlimited);
        EXPECT_FALSE(written) << bytes;
        EXPECT_TRUE(says(lines.back(), "step 2: the checkpoint could not be written"));
        EXPECT_EQ(newest_checkpoint(run.path()).state.step, 1);
        EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints_folder(run.path())), {}), 1)
            << "something is left";
    }
    w.save(*model, state_at(3));
    EXPECT_TRUE(w.finish());
    EXPECT_EQ(newest_checkpoint(run.path()).state.step, 3);
}

TEST_F(Checkpoint, FreeSpaceIsAskedFor) {
    check_free_space(run.path(), 1);
    const std::string message =
        message_of<Error>([&] { check_free_space(run.path(), std::numeric_limits<size_t>::max() / 2); });
    EXPECT_TRUE(says(message, " are free, but a checkpoint needs over 1 EiB"));
}

TEST_F(Checkpoint, ThoseThatAreNotKeptGo) {
    const auto model = trained_model<float>(1);
    const std::vector<double> losses = {3.0, 2.0, 2.5, 2.6, 2.7, 2.8, 2.9};
    for (size_t i = 0; i < losses.size(); i++) {
        // a new writer each time reads the run's checkpoints from the disk
        CheckpointWriter w = writer(*model, {.newest = 1, .every = 4});
        TrainingState state = state_at(static_cast<int>(i) + 1);
        state.val_loss = losses[i];
        w.save(*model, state);
        ASSERT_TRUE(w.finish());
    }
    std::vector<int> steps;
    for (const CheckpointFolder& folder : checkpoint_folders(run.path())) steps.push_back(folder.step);
    // the best, the permanent fourth, the newest known to be good, the newest
    EXPECT_EQ(steps, (std::vector<int>{2, 4, 6, 7}));
}

TEST(KeepPolicy, NamesWhatNeedNotBeKept) {
    const std::optional<double> none;
    EXPECT_EQ(superseded({{1, none}, {2, none}, {3, none}}, {.newest = 2}, 4), (std::vector<int>{1}));
    EXPECT_EQ(superseded({{1, none}, {2, none}, {3, none}}, {.newest = 5}, 4), (std::vector<int>{}));
    EXPECT_EQ(superseded({{10, 1.5}, {20, 1.2}, {30, 1.3}, {40, none}}, {.newest = 1}, 41),
              (std::vector<int>{10, 30}));
    // A comparison with NaN is false, so it would have remained the best one forever.
    EXPECT_EQ(superseded({{1, NAN}, {2, 3.0}, {3, 4.0}, {4, INFINITY}}, {.newest = 1}, 3),
              (std::vector<int>{1, 3}));
    // of equal ones the newer
    EXPECT_EQ(superseded({{10, 1.5}, {20, 1.5}, {30, none}}, {.newest = 1}, 31), (std::vector<int>{10}));
    EXPECT_EQ(superseded({{1000, none}, {1500, none}, {2000, none}, {2500, none}},
                         {.newest = 1, .every = 1000}, 2501),
              (std::vector<int>{1500}));
}

// A checkpoint is known to be good once a later step had a plausible loss.
TEST(KeepPolicy, TheLastCheckpointThatIsKnownToBeGoodStays) {
    const std::optional<double> none;
    EXPECT_FALSE(is_good({5, none}, 5));
    EXPECT_TRUE(is_good({5, none}, 6));
    EXPECT_FALSE(is_good({5, NAN}, 6));
    EXPECT_FALSE(is_good({5, INFINITY}, 6));
    EXPECT_TRUE(is_good({5, 11.5}, 6));
    EXPECT_FALSE(is_good({5, 1e17}, 6));
    // The newest may have broken weights, so the one before is kept.
    EXPECT_EQ(superseded({{1, none}, {2, none}, {3, none}}, {.newest = 1}, 3), (std::vector<int>{1}));
    EXPECT_EQ(superseded({{1, none}, {2, NAN}, {3, none}}, {.newest = 1}, 3), (std::vector<int>{2}));
    // A row of skipped steps does not remove it either; the update of step 2 was the last, and broke the
    // weights.
    EXPECT_EQ(superseded({{1, none}, {2, none}, {3, none}, {4, none}}, {.newest = 1}, 2),
              (std::vector<int>{2, 3}));
}

TEST(Metrics, AreCutBackToAStep) {
    const std::string first = "{\"kind\":\"run\",\"steps\":9}\n", s1 = "{\"kind\":\"train\",\"step\":1}\n",
                      s2 = "{\"kind\":\"train\",\"step\":2}\n", v2 = "{\"kind\":\"val\",\"step\":2}\n",
                      r2 = "{\"kind\":\"run\",\"resumed_from\":2}\n",
                      s3 = "{\"kind\":\"train\",\"step\":3}\n", k3 = "{\"kind\":\"skipped\",\"step\":3}\n",
                      torn = "{\"kind\":\"train\",\"st";
    EXPECT_EQ(metrics_up_to(first + s1 + s2 + v2 + r2 + s3 + k3 + torn, 2, true), first + s1 + s2 + v2 + r2);
    EXPECT_EQ(metrics_up_to(first + s1 + s2 + v2 + r2 + s3 + k3 + torn, 3, true),
              first + s1 + s2 + v2 + r2 + s3 + k3);
    EXPECT_EQ(metrics_up_to(first + s1 + s2 + v2 + r2 + s3, 1, true), first + s1);
    // An evaluation that a signal interrupted is repeated, so its records are removed.
    EXPECT_EQ(metrics_up_to(first + s1 + s2 + v2, 2, false), first + s1 + s2);
    // The line looks complete except for its end; a block that a crash left as zeros; a line that is not
    // an object.
    EXPECT_EQ(metrics_up_to(first + "{\"kind\":\"train\",\"step\":1}", 5, true), first);
    EXPECT_EQ(metrics_up_to(first + std::string(50, '\0') + "\n[1]\n5\n" + s1, 5, true), first + s1);
    EXPECT_EQ(metrics_up_to("", 5, true), "");
    // Another program may have written the number.
    const std::string f3 = "{\"kind\":\"train\",\"step\":3.0}\n";
    EXPECT_EQ(metrics_up_to(first + f3, 3, true), first + f3);
    EXPECT_EQ(metrics_up_to(first + f3, 2, true), first);
    const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    EXPECT_EQ(metrics_up_to(s1 + "{\"kind\":\"train\",\"step\":" + deep + "}\n" + s1, 1, true), s1 + s1);
}

}  // namespace
