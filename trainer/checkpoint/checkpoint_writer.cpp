#include "trainer/checkpoint/checkpoint_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "kernels/simt/device.h"
#include "system/atomic_file.h"
#include "system/error.h"

namespace fs = std::filesystem;

std::vector<SavedCheckpoint> saved_checkpoints(const std::string& run_folder) {
    std::vector<SavedCheckpoint> saved;
    for (const CheckpointFolder& folder : checkpoint_folders(run_folder)) {
        try {
            saved.push_back({folder.step, read_state(folder.path).val_loss});
        } catch (const Error&) {}
    }
    return saved;
}

bool is_good(const SavedCheckpoint& saved, int last_finite_step) {
    return saved.step < last_finite_step && (!saved.val_loss || is_plausible(*saved.val_loss));
}

std::vector<int> superseded(const std::vector<SavedCheckpoint>& saved, const KeepPolicy& policy,
                            int last_finite_step) {
    const SavedCheckpoint *best = nullptr, *good = nullptr;
    for (const SavedCheckpoint& s : saved) {
        if (s.val_loss && std::isfinite(*s.val_loss) && (!best || *s.val_loss <= *best->val_loss)) best = &s;
        if (is_good(s, last_finite_step)) good = &s;
    }
    std::vector<int> steps;
    for (size_t i = 0; i < saved.size(); i++) {
        const SavedCheckpoint& s = saved[i];
        const bool newest = i + static_cast<size_t>(policy.newest) >= saved.size(),
                   for_good = policy.every > 0 && s.step % policy.every == 0;
        if (!newest && !for_good && &s != best && &s != good) steps.push_back(s.step);
    }
    return steps;
}

void CheckpointWriter::note_unwritten(const std::exception& error) const {
    note_(fmt::format("step {}: the checkpoint could not be written, and the run continues without it: {}",
                      state_.step, error.what()));
}

std::future<bool> CheckpointWriter::in_background(const std::function<void()>& action) {
    return std::async(std::launch::async, [this, action] {
        simt::unpin_this_thread();
        try {
            action();
            return true;
        } catch (const std::exception& error) {
            note_unwritten(error);
            return false;
        }
    });
}

void CheckpointWriter::start(TrainingState state) {
    state_ = std::move(state);
    begin_ = std::chrono::steady_clock::now();
    std::string folder;  // empty: it could not be made, and rank 0 has printed why
    if (communicator_.rank() == 0) {
        remove_superseded();  // by now, the loss has shown whether the previous one is good
        try {
            unfinished_.emplace(options_.run_folder, state_.step, snapshot_.checkpoint_bytes());
            folder = unfinished_->folder();
        } catch (const std::exception& error) { note_unwritten(error); }
    }
    folder = gather_texts(communicator_, folder)[0];
    written_ = false;
    if (folder.empty()) return;
    phase_ = writing;
    thread_ = in_background([this, folder] {
        write_checkpoint_files(folder, config_, options_.tokenizer, snapshot_);
        if (alone()) complete();
    });
}

bool CheckpointWriter::is_writing() const {
    return phase_ == writing && thread_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::poll(bool anyone_writing) {
    if (alone() || phase_ != writing || anyone_writing) return;
    complete_if_written(sum_over_processes(communicator_, {thread_.get() ? 0.0 : 1.0})[0] == 0);
}

// Called when every rank has finished its part.
void CheckpointWriter::complete_if_written(bool everywhere) {
    phase_ = everywhere ? completing : idle;
    if (communicator_.rank() > 0) return;
    if (everywhere) thread_ = in_background([this] { complete(); });
    else unfinished_.reset();
}

void CheckpointWriter::complete() {
    unfinished_->complete(state_);
    unfinished_.reset();
    std::erase_if(saved_, [&](const SavedCheckpoint& s) { return s.step >= state_.step; });
    saved_.push_back({state_.step, state_.val_loss});
    remove_superseded();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
    note_(fmt::format("step {}: checkpoint written in {:.2f} s", state_.step, elapsed.count()));
}

bool CheckpointWriter::finish() {
    if (phase_ == writing) {
        const bool everywhere = sum_over_processes(communicator_, {thread_.get() ? 0.0 : 1.0})[0] == 0;
        if (alone()) {
            unfinished_.reset();
            phase_ = idle;
            written_ = everywhere;
        } else {
            complete_if_written(everywhere);
        }
    }
    if (phase_ == completing) {
        const bool failed = thread_.valid() && !thread_.get();
        written_ = sum_over_processes(communicator_, {failed ? 1.0 : 0.0})[0] == 0;
        if (failed) unfinished_.reset();
        phase_ = idle;
    }
    return written_;
}

void CheckpointWriter::add_evaluation(const TrainingState& state) {
    if (!finish() || communicator_.rank() > 0) return;
    state_ = state;
    try {
        sync_file(metrics_file(options_.run_folder));  // they hold the evaluation
        ::add_evaluation(checkpoint_folder(options_.run_folder, state.step), state.val_loss);
        for (SavedCheckpoint& saved : saved_)
            if (saved.step == state.step) saved.val_loss = state.val_loss;
        remove_superseded();
    } catch (const std::exception& error) {
        note_(fmt::format("step {}: the validation loss could not be added to the checkpoint: {}", state.step,
                          error.what()));
        written_ = false;
    }
}

void CheckpointWriter::wait() {
    if (thread_.valid()) thread_.wait();
}

void CheckpointWriter::remove_superseded() {
    for (const int step : superseded(saved_, options_.keep, state_.last_finite_step)) {
        remove(step);
        std::erase_if(saved_, [&](const SavedCheckpoint& s) { return s.step == step; });
    }
}

// Renames the folder first, durably, so that a half-removed checkpoint is never taken for a damaged one.
void CheckpointWriter::remove(int step) {
    const std::string path = checkpoint_folder(options_.run_folder, step), name = temporary_beside(path);
    try {
        rename_path(path, name);
        sync_folder(checkpoints_folder(options_.run_folder));
        fs::remove_all(name);
    } catch (const std::exception& error) {
        note_(fmt::format("step {}: the checkpoint cannot be removed: {}", step, error.what()));
    }
}
