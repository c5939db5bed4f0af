#include "run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "error.h"
#include "print_line.h"
#include "printable.h"
#include "training_state.h"

namespace fs = std::filesystem;

static constexpr std::string_view prefix = "step_";

// The step in a checkpoint's name; std::nullopt for any other name.
static std::optional<int> step_of(const std::string& name) {
    if (!name.starts_with(prefix)) return std::nullopt;
    int step = 0;
    const char *first = name.data() + prefix.size(), *last = name.data() + name.size();
    const auto [end, error] = std::from_chars(first, last, step);
    if (error != std::errc() || end != last || name != fmt::format("{}{:08}", prefix, step)) return std::nullopt;
    return step;
}

void note_on_stderr(const std::string& line) { print_line(stderr, printable(line)); }

std::string metrics_file(const std::string& run_folder) { return run_folder + "/metrics.jsonl"; }
std::string checkpoints_folder(const std::string& run_folder) { return run_folder + "/checkpoints"; }
std::string checkpoint_folder(const std::string& run_folder, int step) {
    return fmt::format("{}/{}{:08}", checkpoints_folder(run_folder), prefix, step);
}

bool is_run_folder(const std::string& path) {
    std::error_code unknown;
    return fs::exists(metrics_file(path), unknown) || fs::is_directory(checkpoints_folder(path), unknown);
}

bool is_checkpoint_folder(const std::string& path) {
    std::error_code unknown;
    const fs::path folder = fs::path(path + "/").lexically_normal().parent_path();
    return fs::exists(folder / state_file_name, unknown) ||
           (fs::is_directory(folder, unknown) && folder.parent_path().filename() == "checkpoints" && step_of(folder.filename()));
}

std::vector<CheckpointFolder> checkpoint_folders(const std::string& run_folder) {
    std::vector<CheckpointFolder> found;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(checkpoints_folder(run_folder), none)) {
        const std::optional<int> step = step_of(entry.path().filename());
        if (step && entry.is_directory()) found.push_back({*step, entry.path()});
    }
    std::sort(found.begin(), found.end(), [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.step < b.step; });
    return found;
}

std::optional<std::string> newest_checkpoint(const std::string& run_folder, const Note& note) {
    std::vector<CheckpointFolder> folders = checkpoint_folders(run_folder);
    if (folders.empty()) return std::nullopt;
    for (auto checkpoint = folders.rbegin(); checkpoint != folders.rend(); ++checkpoint) {
        try {
            whole_checkpoint(checkpoint->path);
            return checkpoint->path;
        } catch (const UsageError& damage) { note(fmt::format("the checkpoint of step {} is passed over: {}", checkpoint->step, damage.what())); }
    }
    throw UsageError(fmt::format("{}: none of its {} checkpoints is whole", run_folder, folders.size()));
}
