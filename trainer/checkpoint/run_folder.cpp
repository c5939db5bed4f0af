#include "trainer/checkpoint/run_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/print_line.h"
#include "system/printable.h"

namespace fs = std::filesystem;

static constexpr std::string_view step_prefix = "step_";

// The step in a checkpoint's name; std::nullopt for any other name.
static std::optional<int> step_of(const std::string& name) {
    if (!name.starts_with(step_prefix)) return std::nullopt;
    int step = 0;
    const char *first = name.data() + step_prefix.size(), *last = name.data() + name.size();
    const auto [end, error] = std::from_chars(first, last, step);
    if (error != std::errc() || end != last || name != fmt::format("{}{:08}", step_prefix, step))
        return std::nullopt;
    return step;
}

std::string make_new_folder(const std::string& path) {
    std::error_code failure;
    make_folders(fs::path(path).parent_path(), failure);
    std::string name = path;
    // mkdir claims the name: it succeeds in one process only.
    for (int i = 2; mkdir(name.c_str(), 0777) != 0; i++) {
        CHECK(errno == EEXIST,
              "{}: cannot be made: {}; expected a working directory that can be written, or --out DIR", name,
              std::strerror(errno));
        name = fmt::format("{}-{}", path, i);
    }
    return name;
}

std::string metrics_file(const std::string& run_folder) { return run_folder + "/metrics.jsonl"; }
std::string checkpoints_folder(const std::string& run_folder) { return run_folder + "/checkpoints"; }
std::string checkpoint_folder(const std::string& run_folder, int step) {
    return fmt::format("{}/{}{:08}", checkpoints_folder(run_folder), step_prefix, step);
}

bool is_run_folder(const std::string& path) {
    return is_there(metrics_file(path)) || is_folder(checkpoints_folder(path));
}

bool holds_checkpoints(const std::string& path) {
    std::error_code unknown;
    const fs::path folder = fs::absolute(path + "/", unknown).lexically_normal().parent_path();
    return folder.filename() == "checkpoints" && fs::exists(metrics_file(folder.parent_path()), unknown);
}

bool is_checkpoint_folder(const std::string& path) {
    const fs::path folder = fs::path(path + "/").lexically_normal().parent_path();
    return is_there(folder / state_file_name) ||
           (is_folder(folder) && folder.parent_path().filename() == "checkpoints" &&
            step_of(folder.filename()));
}

std::vector<CheckpointFolder> checkpoint_folders(const std::string& run_folder) {
    std::vector<CheckpointFolder> found;
    for (const fs::path& path : entries_of(checkpoints_folder(run_folder))) {
        const std::optional<int> step = step_of(path.filename());
        if (step && is_folder(path)) found.push_back({*step, path});
    }
    std::sort(found.begin(), found.end(),
              [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.step < b.step; });
    return found;
}

std::vector<CheckpointFolder> unnamed_checkpoints(const std::string& run_folder, int step) {
    std::vector<std::pair<TrainingState, std::string>> whole;
    for (const std::string& path : leftovers(checkpoints_folder(run_folder), std::string(step_prefix))) {
        const std::string name = path.substr(0, path.rfind(".tmp-"));
        const std::optional<int> its_step = step_of(fs::path(name).filename());
        if (!its_step || *its_step <= step || is_there(name)) continue;
        try {
            whole.emplace_back(whole_checkpoint(path), path);
        } catch (const AccessError&) { throw; } catch (const Error&) {
        }  // half written, half removed, or unreadable
    }
    // If two belong to one step, the one with a complete evaluation comes first.
    const auto rank = [](const auto& found) { return std::pair(found.first.step, found.first.evaluated); };
    std::sort(whole.begin(), whole.end(), [&](const auto& a, const auto& b) { return rank(a) > rank(b); });
    std::vector<CheckpointFolder> found;
    for (const auto& [state, path] : whole) found.push_back({state.step, path});
    return found;
}

NewestCheckpoint find_newest_checkpoint(const std::string& run_folder, const Note& note) {
    NewestCheckpoint newest;
    const std::vector<CheckpointFolder> folders = checkpoint_folders(run_folder);
    for (auto checkpoint = folders.rbegin(); checkpoint != folders.rend(); ++checkpoint) {
        const auto pass_over = [&](std::vector<CheckpointFolder>& others, const Error& error) {
            others.push_back(*checkpoint);
            note(fmt::format("the checkpoint of step {} is passed over: {}", checkpoint->step, error.what()));
        };
        try {
            newest.state = whole_checkpoint(checkpoint->path);
            newest.path = checkpoint->path;
            return newest;
        } catch (const AccessError&) { throw; } catch (const ReadError& error) {
            pass_over(newest.unreadable, error);
        } catch (const UsageError& error) { pass_over(newest.damaged, error); }
    }
    CHECK(folders.empty(), "{}: none of its {} checkpoints is whole", run_folder, folders.size());
    return newest;
}

std::optional<std::string> newest_checkpoint(const std::string& run_folder, const Note& note) {
    const std::string path = find_newest_checkpoint(run_folder, note).path;
    return path.empty() ? std::nullopt : std::optional(path);
}

std::optional<std::string> best_checkpoint(const std::string& run_folder) {
    std::optional<std::string> best;
    double lowest = std::numeric_limits<double>::infinity();
    for (const CheckpointFolder& folder : checkpoint_folders(run_folder)) {
        try {
            const std::optional<double> loss = read_state(folder.path).val_loss;
            if (!loss || !(*loss <= lowest) || !std::isfinite(*loss)) continue;
            lowest = *loss;
            best = folder.path;
        } catch (const AccessError&) { throw; } catch (const Error&) {
        }
    }
    return best;
}

std::string free_name(const std::string& path, const std::string& word) {
    std::string name = path + "." + word;
    for (int i = 2; is_there(name); i++) name = fmt::format("{}.{}-{}", path, word, i);
    return name;
}
