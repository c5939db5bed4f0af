// run_folder.h: where things lie in a run's folder.
//   RUN/metrics.jsonl
//   RUN/checkpoints/step_00001000/          a whole checkpoint, or one that was damaged later
//   RUN/checkpoints/step_00001000.<word>    not a checkpoint: .tmp-XXXXXXXX is being written or removed, .damaged and .superseded were set aside
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

struct CheckpointFolder {
    int step;
    std::string path;
    bool operator==(const CheckpointFolder&) const = default;
};

// Says something in one line.
using Note = std::function<void(const std::string&)>;
void note_on_stderr(const std::string& line);

bool is_run_folder(const std::string& path);         // holds metrics.jsonl or a checkpoints folder
bool is_checkpoint_folder(const std::string& path);  // its name and place are a checkpoint's, or it has a state.json

std::string metrics_file(const std::string& run_folder);
std::string checkpoints_folder(const std::string& run_folder);
std::string checkpoint_folder(const std::string& run_folder, int step);
// The folders called like checkpoints, oldest first; what is in them is not looked at.
std::vector<CheckpointFolder> checkpoint_folders(const std::string& run_folder);

// The newest checkpoint all of whose files are as they were written (their checksums are read: seconds for billions of parameters).
// Each newer one is noted with what is wrong with it. std::nullopt if the run has no checkpoint; UsageError if all are damaged.
std::optional<std::string> newest_checkpoint(const std::string& run_folder, const Note& note = note_on_stderr);
