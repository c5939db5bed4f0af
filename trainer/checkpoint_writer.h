// checkpoint_writer.h: saves checkpoints while training goes on, and removes those that need not be kept.
//   save() copies the model into a snapshot, and a thread writes that; the next save() waits until it is done. A checkpoint that cannot be
//   written (a full disk) costs that checkpoint only: a line says why, and the run goes on.
#pragma once
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "run_folder.h"

struct KeepPolicy {
    int newest = 2;
    int every = 0;  // and for good the checkpoints of every Nth step; 0: none
};

struct SavedCheckpoint {
    int step;
    int skipped;                     // steps in a row, up to this one, whose gradient norm was not finite
    std::optional<double> val_loss;  // of this step, if it was measured
};

// The steps, of `saved` (oldest first), whose checkpoints need not be kept. Beside those that the policy names, two are: the one with the lowest
// validation loss, and the newest that was not saved in a row of steps without a finite norm, which a run that --max-skipped ends can go back to.
std::vector<int> superseded(const std::vector<SavedCheckpoint>& saved, const KeepPolicy& policy);

class CheckpointWriter {
public:
    struct Options {
        std::string run_folder, tokenizer;
        KeepPolicy keep;
    };
    // Allocates the snapshot. Knows the run's checkpoints from before. note is called by the writing thread too.
    template <class T>
    CheckpointWriter(const GPT2<T>& model, const Options& options, const HostAllocator& allocator, Note note)
        : options_(options), config_(model.config()), snapshot_(model.table(), model.optimizer_buffers(), allocator), note_(std::move(note)) {
        look_at_folder();
    }
    ~CheckpointWriter() { finish(); }
    CheckpointWriter(const CheckpointWriter&) = delete;

    template <class T>
    void save(GPT2<T>& model, TrainingState state) {
        finish();
        snapshot_.take(model);
        state.optimizer_step = model.optimizer_step();
        start(std::move(state));
    }
    // Waits until what was saved is written. False if the latest could not be.
    bool finish();

    // The newest checkpoint with skipped == 0; "" if there is none. After finish().
    std::string newest_good() const;

private:
    void look_at_folder();
    void start(TrainingState state);
    void write(const TrainingState& state);
    void remove(int step);

    const Options options_;
    const GPT2Config config_;
    Snapshot snapshot_;
    const Note note_;
    std::vector<SavedCheckpoint> saved_;  // oldest first; the writing thread's while writing_ runs
    std::future<bool> writing_;
    bool written_ = true;
};
