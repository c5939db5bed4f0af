// logger.h: what a run writes down: OUT/metrics.jsonl, one object a line, and one line a step on the
// terminal.
//   Every line is flushed; a disk that is full is an Error, not a silent gap. A number that is not finite is
//   null.
//   On a terminal the step's line is repainted in place (status_line.h); in a log file every line is plain.
#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "system/status_line.h"
#include "trainer/data/hellaswag.h"
#include "trainer/model/gpt2.h"
#include "trainer/run/gpu_monitor.h"

class Logger {
public:
    // Goes on with OUT/metrics.jsonl, or begins it. UsageError if it cannot be written; OUT must be there. Of
    // several processes only the first is
    // active: the others write and print nothing. peak_ms: what a step would take at the machine's peak rate,
    // for the MFU; 0: unknown.
    Logger(const std::string& out, int steps, size_t tokens_per_step, int log_every, bool active = true,
           double peak_ms = 0);

    void run(const nlohmann::json& description);
    void train(int step, const StepResult& result, double lr, double ms,
               const std::optional<GpuReading>& gpu = std::nullopt);
    void profile(int step, const nlohmann::ordered_json& report);     // of profile.h
    void layer_norms(int step, const nlohmann::ordered_json& norms);  // of norms_by_layer.h
    void validation(int step, double loss);
    void hellaswag(int step, const HellaSwagResult& result);
    void sample(int step, const std::string& text);
    void sync();                         // waits until all lines are on the disk
    void note(const std::string& text);  // terminal only, on a line of its own; any thread may

    const std::string& folder() const { return folder_; }
    StatusLine& status() { return status_; }  // of the first process, for what takes long

private:
    void write(const nlohmann::ordered_json& line);
    std::string folder_;
    std::ofstream metrics_;
    int steps_;
    size_t tokens_per_step_;
    int log_every_;
    bool active_;
    double peak_ms_;
    StatusLine status_{stdout};
    std::optional<double> best_validation_loss_;
    double mean_ms_ = 0;  // smoothed, for the time left
    int timed_steps_ = 0;
};

// A name under runs/ for a new folder: the time of day. make_new_folder finds one that nobody else has.
std::string new_run_folder();
