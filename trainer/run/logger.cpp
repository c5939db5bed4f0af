#include "trainer/run/logger.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "system/atomic_file.h"
#include "system/error.h"
#include "system/printable.h"
#include "trainer/checkpoint/run_folder.h"

namespace {

nlohmann::json number(double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}
// A float as a decimal that reads back as the same float, nearly always the shortest.
nlohmann::json number(float value) {
    return std::isfinite(value) ? nlohmann::json(std::stod(fmt::format("{}", value)))
                                : nlohmann::json(nullptr);
}

// The value as it is printed: a NaN without a sign.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace

std::string new_run_folder() {
    return fmt::format("runs/{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
}

std::string profile_table(const nlohmann::ordered_json& report) {
    const auto rate = [](double per_second, bool bytes) {
        const bool tera = per_second >= 1e12;
        return fmt::format("{:.1f} {}{}", per_second * (tera ? 1e-12 : 1e-9), tera ? "T" : "G",
                           bytes ? "B/s" : "FLOP/s");
    };
    constexpr const char *row = "\n{:<28}{:>20}{:>8}{:>12}{:>10}{:>17}{:>10}",
                         *row_of_sums = "\n{:<28}{:>40}{:>10}";
    const auto milliseconds = [](double ms) { return fmt::format("{:.3f}", ms); };
    const auto percent = [](double share) { return fmt::format("{:.1f} %", share * 100); };
    const double step_ms = report["step_ms"], sum = report["operations_ms"];
    std::string text =
        fmt::format("profile: the mean of {} steps; peaks measured in this run: copy {}, matrix product {}",
                    report["steps"].get<int>(), rate(report["peak_bytes_per_second"], true),
                    rate(report["peak_flops_per_second"], false));
    text += fmt::format(row, "operation", "N x C x OC", "calls", "ms", "of step", "rate", "of peak");
    for (const auto& o : report["operations"]) {
        const auto& shape = o["shape"];
        const bool rated = !o["rate"].is_null(), bytes = rated && o["rate"] == "bytes";
        text += fmt::format(
            row, o["name"].get<std::string>(),
            shape.is_null() ? ""
                            : fmt::format("{} x {} x {}", shape[0].get<size_t>(), shape[1].get<size_t>(),
                                          shape[2].get<size_t>()),
            fmt::format("{:g}", o["calls"].get<double>()), milliseconds(o["ms"]), percent(o["share"]),
            rated ? rate(o[bytes ? "bytes" : "flops"].get<double>() / (o["ms"].get<double>() * 1e-3), bytes)
                  : "-",
            !rated                         ? "-"
            : o["share_of_peak"].is_null() ? "caches"
                                           : percent(o["share_of_peak"]));
    }
    text += fmt::format(row_of_sums, "all operations", milliseconds(sum), percent(sum / step_ms));
    text += fmt::format(row_of_sums, "between operations", milliseconds(step_ms - sum),
                        percent(1 - sum / step_ms));
    return text + fmt::format(row_of_sums, "step", milliseconds(step_ms), percent(1));
}

Logger::Logger(const std::string& out, int steps, size_t tokens_per_step, int log_every, bool active)
    : folder_(out), steps_(steps), tokens_per_step_(tokens_per_step), log_every_(log_every), active_(active) {
    if (!active) return;
    metrics_.open(metrics_file(out), std::ios::app);
    CHECK(metrics_.good(), "--out {}: {}; expected a folder that can be written", out, std::strerror(errno));
}

void Logger::write(const nlohmann::ordered_json& line) {
    if (!active_) return;
    // JSON cannot hold bytes that are not UTF-8, such as a sample cut inside a character; they are replaced.
    metrics_ << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
    metrics_.flush();
    if (!metrics_)
        throw Error(fmt::format("{}: {}; the metrics cannot be written", metrics_file(folder_),
                                std::strerror(errno)));
}

void Logger::run(const nlohmann::json& description) {
    nlohmann::ordered_json line = {{"kind", "run"}};
    line.update(nlohmann::ordered_json(description));
    write(line);
}

void Logger::train(int step, const StepResult& result, double lr, double mfu,
                   const std::optional<GpuReading>& gpu) {
    if (!active_) return;
    const double ms = result.ms, tokens_per_second = static_cast<double>(tokens_per_step_) / ms * 1000.0;
    nlohmann::ordered_json record = {{"kind", "train"},
                                     {"step", step},
                                     {"loss", number(result.loss)},
                                     {"grad_norm", number(result.grad_norm)},
                                     {"lr", number(lr)},
                                     {"tokens", static_cast<size_t>(step) * tokens_per_step_},
                                     {"step_ms", ms},
                                     {"tokens_per_second", tokens_per_second},
                                     {"mfu", mfu}};
    if (gpu) record.update(to_json(*gpu));
    write(record);
    if (!result.skipped.empty()) {
        write({{"kind", "skipped"},
               {"step", step},
               {"loss", number(result.loss)},
               {"grad_norm", number(result.grad_norm)},
               {"reason", result.skipped}});
        note(fmt::format("step {}: {}; the update was skipped", step, result.skipped));
    }
    // The first steps are not used to estimate the time left: in them, libraries plan and memory is first
    // touched.
    if (++timed_steps_ > 2) mean_ms_ = mean_ms_ == 0 ? ms : 0.95 * mean_ms_ + 0.05 * ms;
    if (step % log_every_ != 0 && step != steps_ && step != 1) return;
    const std::string at = fmt::format("step {:>{}}/{}", step, std::to_string(steps_).size(), steps_);
    const std::string loss = fmt::format("loss {:.4f}", shown(result.loss)),
                      norm = fmt::format("norm {:6.3f}", shown(result.grad_norm));
    const std::string rate = fmt::format("lr {:.2e}", lr),
                      speed = fmt::format("{:7.0f} tok/s", tokens_per_second);
    const std::string share = fmt::format("{:4.1f} % MFU", mfu * 100);
    const std::string left =
        (mean_ms_ > 0 ? duration_text(mean_ms_ * (steps_ - step) / 1000.0) : "?") + " left";
    if (status_.is_painted()) {
        const std::string best =
            best_validation_loss_ ? fmt::format("best val {:.4f}", *best_validation_loss_) : "";
        const std::string bar = progress_bar(static_cast<double>(step) / steps_, 10);
        status_.paint(
            {{at}, {bar, 3}, {loss, 1}, {best, 4}, {norm, 6}, {rate, 7}, {speed, 5}, {share, 8}, {left, 2}},
            true);
    } else {
        status_.print(fmt::format("{} | {} | {} | {} | {:8.2f} ms | {} | {} | {}", at, loss, norm, rate, ms,
                                  speed, share, left));
    }
}

void Logger::mfu_peak(int step, double flops_per_second, const std::string& peak) {
    write({{"kind", "mfu_peak"}, {"step", step}, {"flops_per_second", flops_per_second}});
    note(fmt::format("step {} was faster than the peak for MFU, which is now {}", step, peak));
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

void Logger::validation(int step, double loss, std::optional<double> bits_per_byte) {
    write({{"kind", "val"},
           {"step", step},
           {"loss", number(loss)},
           {"bits_per_byte", bits_per_byte ? number(*bits_per_byte) : nlohmann::json(nullptr)}});
    const std::string bits =
        bits_per_byte ? fmt::format(", {:.4f} bits per byte", shown(*bits_per_byte)) : "";
    note(fmt::format("step {}: validation loss {:.4f}{}", step, shown(loss), bits));
    if (std::isfinite(loss)) best_validation_loss_ = std::min(loss, best_validation_loss_.value_or(loss));
}

void Logger::hellaswag(int step, const HellaSwagResult& result) {
    write({{"kind", "hellaswag"},
           {"step", step},
           {"accuracy", result.accuracy},
           {"accuracy_norm", result.accuracy_norm},
           {"examples", result.examples}});
    note(fmt::format("step {}: HellaSwag accuracy {:.4f}, by mean log-likelihood {:.4f}, on {} examples",
                     step, result.accuracy, result.accuracy_norm, result.examples));
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
    status_.print(printable(text, "\n\t"));
}
