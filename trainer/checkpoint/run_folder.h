// run_folder.h: the layout of a run's folder.
//   RUN/metrics.jsonl
//   RUN/checkpoints/step_00001000/          a checkpoint; whole if its state.json vouches for every file
//   RUN/checkpoints/step_00001000.<word>    .tmp-XXXXXXXX is being written or removed, or is what a killed
//                                           process left of that; .damaged, .unreadable and .superseded,
//                                           perhaps with a number behind, were set aside and are not read
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "system/note.h"
#include "trainer/checkpoint/training_state.h"

struct CheckpointFolder {
    int step;
    std::string path;
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
// The folders that have a checkpoint's name, oldest first; their contents are not checked. With
// temporary_too also those with its temporary name: a killed process may have left a whole checkpoint there.
enum class CheckpointNames { final_only, temporary_too };
std::vector<CheckpointFolder> checkpoint_folders(const std::string& run_folder,
                                                 CheckpointNames names = CheckpointNames::final_only);

// A checkpoint that is to be renamed to PATH.WORD.
struct SetAside {
    CheckpointFolder folder;
    std::string word;
};

// The newest whole checkpoint, and the newer ones that were passed over.
struct NewestCheckpoint {
    std::string path;  // empty: there is no checkpoint
    TrainingState state;
    // damaged: a file is missing or differs from what was written; unreadable: a file could be opened but
    // not read
    std::vector<SetAside> passed_over;
};
// Verifies the checksums of these files (seconds for billions of parameters). Notes the reason for each
// checkpoint that is passed over; a temporary folder that is not whole is none. UsageError if there are
// checkpoints but none is whole. AccessError if the system denies access to one (EACCES, EMFILE, ...),
// because it may be whole.
NewestCheckpoint newest_checkpoint(const std::string& run_folder, const Note& note = note_on_stderr,
                                   CheckpointNames names = CheckpointNames::final_only,
                                   CheckpointFiles which = CheckpointFiles::all);

// The checkpoint with the lowest validation loss, the newest of several; std::nullopt if no finite loss was
// measured. Only state.json is read; a checkpoint whose state.json is unreadable is ignored.
std::optional<std::string> best_checkpoint(const std::string& run_folder);

// Error if the system cannot rename it.
void rename_path(const std::string& path, const std::string& name);
// Renames path to PATH.WORD or, if that is taken, to PATH.WORD-2, PATH.WORD-3, ... Returns its name.
std::string set_aside(const std::string& path, const std::string& word);
