#include "checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "atomic_file.h"
#include "error.h"
#include "simt/device.h"

namespace fs = std::filesystem;

static const SavedCheckpoint* newest_good_of(const std::vector<SavedCheckpoint>& saved) {
    const auto good = std::find_if(saved.rbegin(), saved.rend(), [](const SavedCheckpoint& s) { return s.skipped == 0; });
    return good == saved.rend() ? nullptr : &*good;
}

std::vector<int> superseded(const std::vector<SavedCheckpoint>& saved, const KeepPolicy& policy) {
    const SavedCheckpoint *best = nullptr, *good = newest_good_of(saved);
    for (const SavedCheckpoint& s : saved) {
        if (s.val_loss && std::isfinite(*s.val_loss) && (!best || *s.val_loss <= *best->val_loss)) best = &s;
    }
    std::vector<int> steps;
    for (size_t i = 0; i < saved.size(); i++) {
        const SavedCheckpoint& s = saved[i];
        const bool newest = i + static_cast<size_t>(policy.newest) >= saved.size(), for_good = policy.every > 0 && s.step % policy.every == 0;
        if (!newest && !for_good && &s != best && &s != good) steps.push_back(s.step);
    }
    return steps;
}

void CheckpointWriter::look_at_folder() {
    for (const CheckpointFolder& folder : checkpoint_folders(options_.run_folder)) {
        try {
            const TrainingState state = read_state(folder.path);
            saved_.push_back({folder.step, state.skipped, state.val_loss});
        } catch (const UsageError&) {}  // damaged: it counts for nothing, and stays as it is
    }
}

void CheckpointWriter::start(TrainingState state) {
    writing_ = std::async(std::launch::async, [this, state = std::move(state)] {
        simt::unpin_this_thread();
        const auto begin = std::chrono::steady_clock::now();
        try {
            write(state);
        } catch (const std::exception& error) {
            note_(fmt::format("step {}: the checkpoint could not be written, and the run goes on without it: {}", state.step, error.what()));
            return false;
        }
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
        note_(fmt::format("step {}: checkpoint written in {:.2f} s", state.step, elapsed.count()));
        return true;
    });
}

void CheckpointWriter::write(const TrainingState& state) {
    write_checkpoint(options_.run_folder, config_, options_.tokenizer, snapshot_, state);
    std::erase_if(saved_, [&](const SavedCheckpoint& s) { return s.step >= state.step; });
    saved_.push_back({state.step, state.skipped, state.val_loss});
    for (const int step : superseded(saved_, options_.keep)) {
        remove(step);
        std::erase_if(saved_, [&](const SavedCheckpoint& s) { return s.step == step; });
    }
}

// Its name goes first, so that half of it is never taken for a damaged checkpoint.
void CheckpointWriter::remove(int step) {
    const std::string path = checkpoint_folder(options_.run_folder, step), name = temporary_beside(path);
    std::error_code failure;
    fs::rename(path, name, failure);
    if (!failure) fs::remove_all(name, failure);
    if (failure) note_(fmt::format("step {}: {} cannot be removed: {}", step, path, failure.message()));
}

bool CheckpointWriter::finish() {
    if (writing_.valid()) written_ = writing_.get();
    return written_;
}

std::string CheckpointWriter::newest_good() const {
    const SavedCheckpoint* good = newest_good_of(saved_);
    return good ? checkpoint_folder(options_.run_folder, good->step) : "";
}
