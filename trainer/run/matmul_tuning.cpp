#include "trainer/run/matmul_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/print_line.h"

namespace fs = std::filesystem;

static constexpr const char* file_name = "matmul_algorithms.json";

std::string matmul_file(const std::string& run_folder) { return run_folder + "/" + file_name; }

static double seconds_for_tuning(double most) {
    const char* const text = std::getenv("FLATGPT_MATMUL_SECONDS");
    if (!text) return std::min(60.0, most);
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    CHECK(end != text && *end == '\0' && seconds >= 0 && seconds < 1e6,
          "FLATGPT_MATMUL_SECONDS={}; expected a number of seconds, 0 for no timing", text);
    return std::min(seconds, most);
}

// The run's own file, else the file of the run that it branches off from; "" if neither exists.
static std::string known_file(const ResumePoint& from) {
    for (const std::string& folder : {from.run_folder, fs::path(from.metrics).parent_path().string()}) {
        if (!folder.empty() && is_there(matmul_file(folder))) return matmul_file(folder);
    }
    return "";
}

// FLATGPT_MATMULS; "" if it is not set.
static std::string shared_file() {
    const char* const path = std::getenv("FLATGPT_MATMULS");
    return path ? path : "";
}

// Returns the file's text if its choices can be used; else notes the reason and returns "". AccessError
// or ReadError if the run's own file cannot be read; an unreadable shared file is only noted.
static std::string adopt_file(Gemm& gemm, const std::string& path, bool shared, const Note& note) {
    std::string text, reason;
    try {
        text = FileReader(path).text();
        reason = gemm.adopt(text);
    } catch (const Error& error) {
        const bool unreadable = dynamic_cast<const AccessError*>(&error) != nullptr ||
                                dynamic_cast<const ReadError*>(&error) != nullptr;
        if (unreadable && !shared) throw;
        reason = error.what();
    }
    if (reason.empty()) return text;
    note(fmt::format("{} is not used and will be replaced: {}", path, reason));
    return "";
}

static void write_shared_file(const std::string& path, const std::string& text, const Note& note) {
    try {
        write_atomically(path, text);
    } catch (const Error& error) {
        note(fmt::format("FLATGPT_MATMULS={} cannot be updated: {}", path, error.what()));
    }
}

static void tune_as_first(Gemm& gemm, const std::function<void()>& rehearse, const ResumePoint& from,
                          double most_seconds, const Note& note) {
    const std::string path = matmul_file(from.run_folder), known = known_file(from),
                      shared = most_seconds > 0 ? shared_file() : "";
    std::string before, shared_before = gemm.choices(true);
    if (std::error_code unknown; !shared.empty() && fs::exists(shared, unknown))
        shared_before = adopt_file(gemm, shared, true, note);
    // adopted after the shared file, so that the run's own choices take precedence
    if (!known.empty()) before = adopt_file(gemm, known, false, note);
    note(gemm.tune(rehearse, seconds_for_tuning(most_seconds)));
    remove_leftovers(from.run_folder, file_name);
    if (const std::string now = gemm.choices(); now != before || known != path) write_atomically(path, now);
    if (const std::string now = gemm.choices(true); !shared.empty() && now != shared_before)
        write_shared_file(shared, now, note);
}

void tune_matmuls(Gemm& gemm, const std::function<void()>& rehearse, const ResumePoint& from,
                  double most_seconds, Communicator& communicator, const Note& note) {
    if (gemm.choices().empty()) return;
    const bool first = communicator.rank() == 0;
    if (first) tune_as_first(gemm, rehearse, from, most_seconds, note);
    const std::string chosen = gather_texts(communicator, first ? gemm.choices() : "")[0];
    if (first) return;
    const std::string reason = gemm.adopt(chosen);
    if (!reason.empty())
        print_line(stderr, fmt::format("train_gpt2: rank {}: rank 0's matmul algorithms cannot be used: {}",
                                       communicator.rank(), reason));
}
