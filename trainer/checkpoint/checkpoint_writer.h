// checkpoint_writer.h: saves checkpoints while training continues, and removes those that need not be kept.
//   save() copies the model into a snapshot, which a thread writes; the next save() waits for it. Each rank
//   writes its part, and rank 0 completes the checkpoint when all ranks are done. If a checkpoint cannot be
//   written (a full disk), a line says why and the run continues without it. A checkpoint may be begun
//   before its step is evaluated; add_evaluation() then adds the result.
#pragma once
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "system/host_allocator.h"
#include "system/note.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/run_folder.h"

struct KeepPolicy {
    int newest = 2;
    int every = 0;  // checkpoints of steps that are multiples of this are kept forever; 0: none
};

struct SavedCheckpoint {
    int step;
    std::optional<double> val_loss;  // at this step, if it was measured
};

// The run's checkpoints whose state.json can be read, oldest first; others are ignored and stay as they are.
std::vector<SavedCheckpoint> saved_checkpoints(const std::string& run_folder);

// True if the checkpoint's validation loss is plausible or was not measured, and the loss of a later step,
// computed from weights trained on from it, was plausible too.
bool is_good(const SavedCheckpoint& saved, int last_finite_step);

// Steps in `saved` (oldest first) whose checkpoints can be removed. Besides those that the policy keeps,
// two are kept: the one with the lowest validation loss, and the newest good one, to which a run with
// broken weights can go back.
std::vector<int> superseded(const std::vector<SavedCheckpoint>& saved, const KeepPolicy& policy,
                            int last_finite_step);

class CheckpointWriter {
public:
    struct Options {
        std::string run_folder;
        const Tokenizer& tokenizer;  // whose files every checkpoint gets
        KeepPolicy keep;
    };
    // Allocates the snapshot and lists the run's existing checkpoints. The writing thread calls note too.
    template <class T>
    CheckpointWriter(const Model<T>& model, Communicator& communicator, const Options& options,
                     const HostAllocator& allocator, Note note)
        : options_(options),
          config_(model.config()),
          communicator_(communicator),
          snapshot_(SnapshotShape::of(model), model.table(), model.optimizer_buffers(), allocator),
          note_(std::move(note)),
          saved_(saved_checkpoints(options.run_folder)) {}
    ~CheckpointWriter() { wait(); }
    CheckpointWriter(const CheckpointWriter&) = delete;

    // save, poll, finish and add_evaluation are called by all ranks together.
    template <class T>
    void save(Model<T>& model, TrainingState state) {
        finish();
        snapshot_.take(model);
        state.optimizer_step = model.optimizer_step();
        start(std::move(state));
    }
    // Called once per step: completes a checkpoint as soon as all ranks have written their parts.
    // anyone_writing: true if any rank was still writing at some time after the last save().
    void poll(bool anyone_writing);
    // Waits until the checkpoint is complete. False if the latest one could not be written.
    bool finish();

    // Records in the checkpoint of the state's step that it has been evaluated. The checkpoint is the latest
    // one that was saved, for which this waits, or the one that the run was resumed from.
    void add_evaluation(const TrainingState& state);

    // True while this rank's part is being written.
    bool is_writing() const;
    // Waits for this process's thread only. A checkpoint that other ranks have not written yet is not
    // completed.
    void wait();

private:
    bool alone() const { return communicator_.size() == 1; }
    void note_unwritten(const std::exception& error) const;
    void start(TrainingState state);
    std::future<bool> in_background(const std::function<void()>& action);
    void complete_if_written(bool everywhere);
    void complete();
    void remove_superseded();
    void remove(int step);

    const Options options_;
    const ModelConfig config_;
    Communicator& communicator_;
    Snapshot snapshot_;
    const Note note_;
    std::vector<SavedCheckpoint> saved_;  // oldest first; rank 0 only, used by its thread while that runs
    TrainingState state_;                 // state of the checkpoint that is being written
    std::chrono::steady_clock::time_point begin_;
    std::optional<UnfinishedCheckpoint> unfinished_;   // rank 0 only
    enum { idle, writing, completing } phase_ = idle;  // equal on all ranks
    std::future<bool> thread_;
    bool written_ = true;
};
