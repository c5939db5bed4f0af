// logger.h: writes OUT/metrics.jsonl, one JSON object per line, and prints one line per step on the
// terminal.
//   Every line is flushed, and a full disk is an Error, not a silent gap. A number that is not finite is
//   written as null.
//   On a terminal the step's line is repainted in place (status_line.h); in a log file every line is
//   printed plainly.
#pragma once
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "system/status_line.h"
#include "trainer/data/hellaswag.h"
#include "trainer/engine/model.h"
#include "trainer/run/gpu_monitor.h"

class Logger {
public:
    // Appends to OUT/metrics.jsonl, which may not exist yet; OUT must exist. UsageError if the file
    // cannot be written. Only rank 0 is active; the other ranks write and print nothing.
    Logger(const std::string& out, int steps, size_t tokens_per_step, int log_every, bool active);

    void run(const nlohmann::json& description);
    void train(int step, const StepResult& result, double lr, double mfu,
               const std::optional<GpuReading>& gpu);
    // The peak of which the MFU is a fraction from this step on; peak: with its unit.
    void mfu_peak(int step, double flops_per_second, const std::string& peak);
    void profile(int step, const nlohmann::ordered_json& report);     // report of profile.h
    void layer_norms(int step, const nlohmann::ordered_json& norms);  // norms of norms_by_layer.h
    void validation(int step, double loss, std::optional<double> bits_per_byte);
    void hellaswag(int step, const HellaSwagResult& result);
    void sample(int step, const std::string& text);
    void sync();                         // waits until all lines are on the disk
    void note(const std::string& text);  // prints on its own line, terminal only; any thread may call it

    const std::string& folder() const { return folder_; }
    StatusLine& status() { return status_; }  // rank 0's, for the progress of long operations

private:
    void write(const nlohmann::ordered_json& line);
    std::string folder_;
    std::ofstream metrics_;
    int steps_;
    size_t tokens_per_step_;
    int log_every_;
    bool active_;
    StatusLine status_{stdout};
    std::optional<double> best_validation_loss_;
    double mean_ms_ = 0;  // milliseconds per step, smoothed, for the time left
    int timed_steps_ = 0;
};

// A report of profile.h as a table for the terminal.
std::string profile_table(const nlohmann::ordered_json& report);

// A name for a new folder: runs/ and the current time. make_new_folder finds another name if it is taken.
std::string new_run_folder();
