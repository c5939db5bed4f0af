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

std::vector<CheckpointFolder> checkpoint_folders(const std::string& run_folder, CheckpointNames names) {
    std::vector<CheckpointFolder> found;
    for (const fs::path& path : entries_of(checkpoints_folder(run_folder))) {
        std::string name = path.filename();
        if (names == CheckpointNames::temporary_too) name = final_name_of(name).value_or(name);
        const std::optional<int> step = step_of(name);
        if (step && is_folder(path)) found.push_back({*step, path});
    }
    // Two folders of one step are ordered so that the one without .tmp-XXXXXXXX comes last, as the newest.
    std::sort(found.begin(), found.end(), [](const CheckpointFolder& a, const CheckpointFolder& b) {
        return std::pair(a.step, b.path) < std::pair(b.step, a.path);
    });
    return found;
}

NewestCheckpoint newest_checkpoint(const std::string& run_folder, const Note& note, CheckpointNames names,
                                   CheckpointFiles which) {
    NewestCheckpoint newest;
    std::vector<CheckpointFolder> folders = checkpoint_folders(run_folder, names);
    for (; !folders.empty(); folders.pop_back()) {
        const CheckpointFolder& folder = folders.back();
        const auto pass_over = [&](const char* word, const Error& error) {
            if (is_temporary(fs::path(folder.path).filename())) return;
            newest.passed_over.push_back({folder, word});
            note(fmt::format("the checkpoint of step {} is passed over: {}", folder.step, error.what()));
        };
        try {
            newest.state = whole_checkpoint(folder.path, which);
            newest.path = folder.path;
            return newest;
        } catch (const AccessError&) { throw; } catch (const ReadError& error) {
            pass_over("unreadable", error);
        } catch (const UsageError& error) { pass_over("damaged", error); }
    }
    CHECK(newest.passed_over.empty(), "{}: none of its {} checkpoints is whole", run_folder,
          newest.passed_over.size());
    return newest;
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

void rename_path(const std::string& path, const std::string& name) {
    std::error_code failure;
    fs::rename(path, name, failure);
    if (failure) throw Error(fmt::format("{}: cannot be renamed: {}", path, failure.message()));
}

std::string set_aside(const std::string& path, const std::string& word) {
    std::string name = path + "." + word;
    for (int i = 2; is_there(name); i++) name = fmt::format("{}.{}-{}", path, word, i);
    rename_path(path, name);
    return name;
}
