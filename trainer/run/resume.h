// resume.h: finds the checkpoint that a run continues from, and checks that it may.
//   --resume none   a new run
//            auto   the newest whole checkpoint of --out, even if a kill left it without its name;
//                   the start, if --out holds no checkpoint yet
//            PATH   a checkpoint or a run's folder; with another --out, the run branches off: the new folder
//                   begins with a copy of the metrics
// Nothing on the disk changes before prepare_run_folder, which is called after all checks.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "system/folder_lock.h"
#include "system/note.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/data/token_shard.h"
#include "trainer/run/options.h"
#include "trainer/tokenizer/tokenizer.h"

struct ResumePoint {
    std::string run_folder;  // where this run writes; it may not exist yet
    // the folder is named after the current time; prepare_run_folder claims this name or a similar one
    bool is_proposed = false;
    std::vector<std::string> found{};  // paths of the metrics and checkpoints in run_folder; empty: no run
    std::string checkpoint{};          // a whole checkpoint; empty: start from step 1
    TrainingState state{};             // of the checkpoint
    // file of the metrics up to the checkpoint's step, with which the new ones begin; empty: none
    std::string metrics{};
    std::vector<SetAside> set_aside{};  // newer checkpoints of the run, passed over or left behind

    int step() const { return checkpoint.empty() ? 0 : state.step; }
    // True if the checkpoint is in run_folder and has its name, as it has after prepare_run_folder.
    bool is_in_run_folder() const { return checkpoint == checkpoint_folder(run_folder, step()); }
    // The checkpoint's micro-batch, with which sums round as before; 0 if it does not divide a step of
    // this run.
    int batch_size(const Options& options) const;
    // True if the run has taken all its steps and its last checkpoint has its name. UsageError if it has
    // taken more steps.
    bool is_complete(int steps) const;
};

// Finds the checkpoint that the options name and notes damaged ones that it passes over. UsageError if
// there is none, all are damaged, the folder to write to holds another run, or the system denies access
// to a folder or a file.
ResumePoint find_resume_point(const Options& options, const Note& note);

// The values that a run must have in common with the checkpoint from which it continues: the model's
// shape, the data, and the samples of each step.
nlohmann::json run_identity(const Options& options, const Tokenizer& tokenizer,
                            std::span<const TokenShard> train);

// True for a new run, and if the identity has the training data of the run that goes on.
bool is_same_data(const ResumePoint& from, const nlohmann::json& identity);

// UsageError that names every part of the identity that differs. Notes changed options that affect what
// training computes. train_texts: the number of texts among the training data.
void check_same_run(const ResumePoint& from, const nlohmann::json& identity, size_t train_texts,
                    const Options& options, const Note& note);

// Makes the run's folder and holds its lock for the lifetime of the result. UsageError if another process
// holds the lock or has written there since find_resume_point. Renames checkpoints that were passed over or
// left behind, so that they can be inspected, gives a checkpoint with a temporary name its own, removes what
// a killed run left half written, and cuts metrics.jsonl back to the checkpoint's step. A run that starts
// again renames its old metrics. All of this is durable on return. Notes what it did, and which steps have no
// line.
FolderLock prepare_run_folder(ResumePoint& from, const Note& note);

// The lines of a metrics.jsonl that belong to the steps up to `step`, without the lines of later steps,
// the "run" lines of runs resumed after it, and torn lines. If evaluated is false, of `step` itself only
// what training wrote is kept. damaged: raised by the number of whole lines without a kind or a step, which
// are left out, too.
std::string metrics_up_to(const std::string& text, int step, bool evaluated, size_t* damaged = nullptr);
