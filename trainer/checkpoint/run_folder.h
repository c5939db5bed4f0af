// run_folder.h: the layout of a run's folder.
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

// These throw AccessError if the system denies access, because a run that cannot be seen is not "no run".
bool is_run_folder(const std::string& path);      // holds metrics.jsonl or a checkpoints folder
bool holds_checkpoints(const std::string& path);  // true for the checkpoints folder of a run
// true if its name and parent are a checkpoint's, or if it has a state.json
bool is_checkpoint_folder(const std::string& path);

// Makes a new folder at path or, if that is taken, at path-2, path-3, ... Returns its path. Safe among
// several processes.
std::string make_new_folder(const std::string& path);

std::string metrics_file(const std::string& run_folder);
std::string checkpoints_folder(const std::string& run_folder);
std::string checkpoint_folder(const std::string& run_folder, int step);
// The folders that have a checkpoint's name, oldest first; their contents are not checked.
std::vector<CheckpointFolder> checkpoint_folders(const std::string& run_folder);

// Whole checkpoints that a killed process left under a temporary name, newest first: either it was killed
// before the last rename, or it had renamed an older checkpoint to make room, on a file system that cannot
// exchange names. Only checkpoints of steps after `step` whose name is free.
std::vector<CheckpointFolder> unnamed_checkpoints(const std::string& run_folder, int step);

// The newest whole checkpoint, and the newer ones that were passed over.
struct NewestCheckpoint {
    std::string path;  // empty: the run has no checkpoint
    TrainingState state;
    std::vector<CheckpointFolder> damaged;     // a file is missing or differs from what was written
    std::vector<CheckpointFolder> unreadable;  // a file could be opened but not read
};
// Verifies all checksums (seconds for billions of parameters). Each checkpoint that is passed over is noted
// with the reason. UsageError if there are checkpoints but none is whole. AccessError if the system denies
// access to one (EACCES, EMFILE, ...), because it may be whole.
NewestCheckpoint find_newest_checkpoint(const std::string& run_folder, const Note& note = note_on_stderr);
// The path of that checkpoint, if the run has any.
std::optional<std::string> newest_checkpoint(const std::string& run_folder,
                                             const Note& note = note_on_stderr);

// The checkpoint with the lowest validation loss, the newest of several; std::nullopt if no finite loss was
// measured. Only state.json is read; a checkpoint whose state.json is unreadable is ignored.
std::optional<std::string> best_checkpoint(const std::string& run_folder);

// PATH.WORD or, if that is taken, PATH.WORD-2, PATH.WORD-3, ...
std::string free_name(const std::string& path, const std::string& word);
