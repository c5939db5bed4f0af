// resume.h: from where a run goes on, and whether it may.
//   --resume none   a new run
//            auto   the newest whole checkpoint of --out, even one that a kill has left without its name;
//                   the start, if --out holds no checkpoint yet
//            PATH   a checkpoint or a run's folder; with another --out, the run branches off: the new folder
//                   begins with a copy of the metrics
// Nothing on the disk changes before prepare_run_folder, when everything that can refuse the run has been
// looked at.
#pragma once
#include <nlohmann/json.hpp>
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
    std::string run_folder;  // where this run writes; it need not exist yet
    // the folder is named by the time of day: make_new_folder claims it, or another name
    bool is_proposed = false;
    std::string checkpoint;   // a whole one; empty: from the start
    TrainingState state;      // of the checkpoint
    std::string metrics;      // what the new metrics begin with, up to the checkpoint's step; empty: nothing
    bool is_new = false;      // the folder must not hold a run yet
    bool over_again = false;  // the folder holds a run that never came to a checkpoint
    // Newer ones in the run's folder. The first two were passed over (run_folder.h); a given checkpoint
    // leaves the last ones behind.
    std::vector<CheckpointFolder> damaged, unreadable, later;

    int step() const { return checkpoint.empty() ? 0 : state.step; }
    bool is_unnamed() const;  // the checkpoint still has its temporary name
    // The checkpoint's micro-batch, with which sums round as they did; 0 if it does not divide a step of this
    // run.
    int batch_size(const Options& options) const;
    // Has the run taken all its steps, and its last checkpoint a name? UsageError if it has taken more.
    bool is_complete(int steps) const;
};

// Finds the checkpoint that the options mean; notes damaged ones that it passes over. UsageError if there is
// none, all are damaged, the folder to write to holds another run, or the system refuses to show a folder or
// a file.
ResumePoint find_resume_point(const Options& options, const Note& note);

// What two runs must have in common for the one to go on where the other stood: model shape, data, and which
// sample a step takes.
nlohmann::json run_identity(const Options& options, const Tokenizer& tokenizer,
                            std::span<const TokenShard> train);

// UsageError that names every part of the identity which differs. Notes the options that changed and change
// what training computes.
void check_same_run(const ResumePoint& from, const nlohmann::json& identity, const Options& options,
                    const Note& note);

// Makes the run's folder, and claims it as long as the result lives (UsageError if another process has, or
// has written there since find_resume_point looked). Removes what a killed run left half written, gives an
// unnamed checkpoint its name, sets checkpoints that were passed over or left behind aside (renamed, so that
// they can be looked at), and cuts metrics.jsonl back to the checkpoint's step; a run that starts again sets
// its metrics aside. All of that is on the disk then. Notes what it did, and which steps have no line.
FolderLock prepare_run_folder(ResumePoint& from, const Note& note);

// The lines of a metrics.jsonl that belong to the steps up to `step`: without the lines of later steps, marks
// of runs resumed later, and
// lines that are torn. evaluated false: of `step` itself, only what training wrote.
std::string metrics_up_to(const std::string& text, int step, bool evaluated);
