// checkpoint_writer.h: saves checkpoints while training goes on, and removes those that need not be kept.
//   save() copies the model into a snapshot, and a thread writes that; the next save() waits until it is
//   done. Of several processes each writes its share, and rank 0 completes the checkpoint when all have. One
//   that cannot be written (a full disk) costs that checkpoint only: a line says why, and the run goes on.
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
    int every = 0;  // and for good the checkpoints of every Nth step; 0: none
};

struct SavedCheckpoint {
    int step;
    std::optional<double> val_loss;  // of this step, if it was measured
};

// Its validation loss, if it was measured, is sound, and so was the loss of a later step, which its weights
// or what became of them gave.
bool is_good(const SavedCheckpoint& saved, int sound_step);

// The steps, of `saved` (oldest first), whose checkpoints need not be kept. Beside those that the policy
// names, two are: the one with the lowest validation loss, and the newest good one, to which a run that
// breaks its weights can go back.
std::vector<int> superseded(const std::vector<SavedCheckpoint>& saved, const KeepPolicy& policy,
                            int sound_step);

class CheckpointWriter {
public:
    struct Options {
        std::string run_folder;
        const Tokenizer& tokenizer;  // whose files every checkpoint gets
        KeepPolicy keep;
    };
    // Allocates the snapshot. Knows the run's checkpoints from before. note is called by the writing thread
    // too.
    template <class T>
    CheckpointWriter(const GPT2<T>& model, Communicator& communicator, const Options& options,
                     const HostAllocator& allocator, Note note)
        : options_(options),
          config_(model.config()),
          communicator_(communicator),
          snapshot_(SnapshotShape::of(model), model.table(), model.optimizer_buffers(), allocator),
          note_(std::move(note)),
          saved_(saved_in_folder()) {}
    ~CheckpointWriter() { wait(); }
    CheckpointWriter(const CheckpointWriter&) = delete;

    // These three are called by all processes together.
    template <class T>
    void save(GPT2<T>& model, TrainingState state) {
        finish();
        snapshot_.take(model);
        state.optimizer_step = model.optimizer_step();
        start(std::move(state));
    }
    // Once a step: completes what all processes have written, so that a checkpoint does not wait for the next
    // one. anyone_writing: whether any process still was, some time after the last save.
    void poll(bool anyone_writing);
    // Waits until what was saved is complete. False if the latest could not be written.
    bool finish();

    // Whether this process's share is being written.
    bool is_writing() const;
    // Waits for this process's own threads. What others have not written is not completed.
    void wait();
    // The run's newest good checkpoint, and its newest one; "" if there is none. After finish() or wait().
    std::string newest_good(int sound_step) const;
    std::string newest() const;

private:
    bool alone() const { return communicator_.size() == 1; }
    std::vector<SavedCheckpoint> saved_in_folder() const;
    void start(TrainingState state);
    std::future<bool> in_background(const std::function<void()>& action);
    void complete_if_written(bool everywhere);
    void complete();
    void remove_superseded();
    void remove(int step);

    const Options options_;
    const GPT2Config config_;
    Communicator& communicator_;
    Snapshot snapshot_;
    const Note note_;
    std::vector<SavedCheckpoint> saved_;  // oldest first; rank 0's, and its thread's while that runs
    TrainingState state_;                 // of the one that is being written
    std::chrono::steady_clock::time_point begin_;
    std::optional<UnfinishedCheckpoint> unfinished_;   // rank 0's
    enum { idle, writing, completing } phase_ = idle;  // the same in all processes
    std::future<bool> thread_;
    bool written_ = true;
};
