// run_folder.h: where things lie in a run's folder.
//   RUN/metrics.jsonl
//   RUN/checkpoints/step_00001000/          a whole checkpoint, or one that was damaged later
//   RUN/checkpoints/step_00001000.<word>    not a checkpoint: .tmp-XXXXXXXX is being written or removed;
//                                           .damaged, .unreadable and .superseded,
//                                           perhaps with a number behind, were set aside
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "system/note.h"
#include "trainer/checkpoint/training_state.h"

struct CheckpointFolder {
    int step;
    std::string path;
    bool operator==(const CheckpointFolder&) const = default;
};

// These throw AccessError if the system does not say what is there: a run that cannot be seen is not "no
// run".
bool is_run_folder(const std::string& path);      // holds metrics.jsonl or a checkpoints folder
bool holds_checkpoints(const std::string& path);  // it is the checkpoints folder of a run
// its name and place are a checkpoint's, or it has a state.json
bool is_checkpoint_folder(const std::string& path);

// Makes a folder that nobody else has: at path or, if there is something, at path-2, path-3, ... Returns its
// path.
std::string make_new_folder(const std::string& path);

std::string metrics_file(const std::string& run_folder);
std::string checkpoints_folder(const std::string& run_folder);
std::string checkpoint_folder(const std::string& run_folder, int step);
// The folders called like checkpoints, oldest first; what is in them is not looked at.
std::vector<CheckpointFolder> checkpoint_folders(const std::string& run_folder);

// Whole checkpoints without their name, newest first, that a killed process left: it had written everything
// but the name, or had renamed an older one to make room, as file systems need that cannot exchange names.
// Only those of steps after `step` whose name no other folder has.
std::vector<CheckpointFolder> unnamed_checkpoints(const std::string& run_folder, int step);

// The newest checkpoint all of whose files are as they were written, and newer ones that are passed over.
struct NewestCheckpoint {
    std::string path;  // empty: the run has no checkpoint
    TrainingState state;
    std::vector<CheckpointFolder> damaged;     // a file is missing, or is not as it was written
    std::vector<CheckpointFolder> unreadable;  // a file was opened, but its bytes cannot be read
};
// Reads all checksums (seconds for billions of parameters). Each checkpoint that is passed over is noted with
// what is wrong with it. UsageError if there are checkpoints but none is whole. AccessError if the system
// refuses to show one (EACCES, EMFILE, ...): it may be as good as any.
NewestCheckpoint find_newest_checkpoint(const std::string& run_folder, const Note& note = note_on_stderr);
// Its path, if the run has one.
std::optional<std::string> newest_checkpoint(const std::string& run_folder,
                                             const Note& note = note_on_stderr);

// The one whose validation loss is lowest, the newest of several; none where no finite one was measured. Only
// what state.json says is read; one whose state.json cannot be read does not count.
std::optional<std::string> best_checkpoint(const std::string& run_folder);

// PATH.WORD, or PATH.WORD-2, PATH.WORD-3, ... where that is taken.
std::string free_name(const std::string& path, const std::string& word);
