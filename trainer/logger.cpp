#include "logger.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "atomic_file.h"
#include "error.h"
#include "print_line.h"
#include "printable.h"
#include "profile_table.h"
#include "run_folder.h"

namespace {

nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }
// A float as the shortest decimal that reads back as the same float.
nlohmann::json number(float value) { return std::isfinite(value) ? nlohmann::json(std::stod(fmt::format("{}", value))) : nlohmann::json(nullptr); }

// For a person: a NaN has no sign.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string duration(double seconds) {
    const auto s = static_cast<long long>(std::llround(seconds));
    if (s < 60) return fmt::format("{}s", s);
    if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
    return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

}  // namespace

std::string new_run_folder() { return fmt::format("runs/{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr))); }

Logger::Logger(const std::string& out, int steps, size_t tokens_per_step, int log_every, bool active, double peak_ms)
    : folder_(out),
      steps_(steps),
      tokens_per_step_(tokens_per_step),
      log_every_(log_every),
      active_(active),
      peak_ms_(peak_ms),
      terminal_(isatty(STDOUT_FILENO) != 0) {
    if (!active) return;
    metrics_.open(metrics_file(out), std::ios::app);
    CHECK(metrics_.good(), "--out {}: {}; expected a folder that can be written", out, std::strerror(errno));
}

void Logger::write(const nlohmann::ordered_json& line) {
    if (!active_) return;
    // Text may hold bytes that are not UTF-8 (a sample cut in a character): replaced, since JSON cannot hold them.
    metrics_ << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
    metrics_.flush();
    if (!metrics_) throw Error(fmt::format("{}: {}; the run cannot be written down", metrics_file(folder_), std::strerror(errno)));
}

void Logger::finish_line() {
    if (line_open_) std::fputc('\n', stdout);
    line_open_ = false;
}

void Logger::run(const nlohmann::json& description) {
    nlohmann::ordered_json line = {{"kind", "run"}};
    line.update(nlohmann::ordered_json(description));
    write(line);
}

void Logger::train(int step, const StepResult& result, double lr, double ms, const std::optional<GpuReading>& gpu) {
    if (!active_) return;
    const double tokens_per_second = static_cast<double>(tokens_per_step_) / ms * 1000.0, mfu = peak_ms_ / ms;
    nlohmann::ordered_json record = {{"kind", "train"},
                                     {"step", step},
                                     {"loss", number(result.loss)},
                                     {"grad_norm", number(result.grad_norm)},
                                     {"lr", number(lr)},
                                     {"tokens", static_cast<size_t>(step) * tokens_per_step_},
                                     {"step_ms", ms},
                                     {"tokens_per_second", tokens_per_second},
                                     {"mfu", mfu > 0 ? nlohmann::json(mfu) : nlohmann::json(nullptr)}};
    if (gpu) record.update(to_json(*gpu));
    write(record);
    if (!result.skipped.empty()) {
        write({{"kind", "skipped"},
               {"step", step},
               {"loss", number(result.loss)},
               {"grad_norm", number(result.grad_norm)},
               {"reason", result.skipped}});
        note(fmt::format("step {}: {}; the step changed nothing", step, result.skipped));
    }
    // The first steps, in which libraries plan and memory is first touched, say nothing about the time left.
    if (++timed_steps_ > 2) mean_ms_ = mean_ms_ == 0 ? ms : 0.95 * mean_ms_ + 0.05 * ms;
    if (step % log_every_ != 0 && step != steps_ && step != 1) return;
    const std::string left = mean_ms_ > 0 ? duration(mean_ms_ * (steps_ - step) / 1000.0) : "?";
    const std::string line = fmt::format("step {:>{}}/{} | loss {:.4f} | norm {:6.3f} | lr {:.2e} | {:8.2f} ms | {:7.0f} tok/s |{} {} left", step,
                                         std::to_string(steps_).size(), steps_, shown(result.loss), shown(result.grad_norm), lr, ms,
                                         tokens_per_second, mfu > 0 ? fmt::format(" {:4.1f} % MFU |", mfu * 100) : "", left);
    const std::lock_guard lock(terminal_mutex_);
    if (terminal_) {
        std::fputs(("\r\x1b[2K" + line).c_str(), stdout);  // silent if it fails, as print_line is
        line_open_ = true;
    } else {
        print_line(stdout, line);
    }
    std::fflush(stdout);
}

void Logger::layer_norms(int step, const nlohmann::ordered_json& norms) {
    nlohmann::ordered_json line = {{"kind", "layer_norms"}, {"step", step}};
    line.update(norms);
    write(line);
}

void Logger::profile(int step, const nlohmann::ordered_json& report) {
    nlohmann::ordered_json line = {{"kind", "profile"}, {"step", step}};
    line.update(report);
    write(line);
    note(profile_table(report));
}

void Logger::validation(int step, double loss) {
    write({{"kind", "val"}, {"step", step}, {"loss", number(loss)}});
    note(fmt::format("step {}: validation loss {:.4f}", step, shown(loss)));
}

void Logger::hellaswag(int step, const HellaSwagResult& result) {
    write({{"kind", "hellaswag"},
           {"step", step},
           {"accuracy", result.accuracy},
           {"accuracy_norm", result.accuracy_norm},
           {"examples", result.examples}});
    note(fmt::format("step {}: HellaSwag accuracy {:.4f}, by the mean {:.4f}, of {} examples", step, result.accuracy, result.accuracy_norm,
                     result.examples));
}

void Logger::sample(int step, const std::string& text) {
    write({{"kind", "sample"}, {"step", step}, {"text", text}});
    note(fmt::format("step {}: sample\n---\n{}\n---", step, text));
}

void Logger::sync() {
    if (!active_) return;
    sync_file(metrics_file(folder_));
    sync_folder(folder_);
}

void Logger::note(const std::string& text) {
    if (!active_) return;
    const std::lock_guard lock(terminal_mutex_);
    finish_line();
    print_line(stdout, printable(text, "\n\t"));
    std::fflush(stdout);
}
