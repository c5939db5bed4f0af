// expected_time.h: how long a run would take, as --plan prints it.
#pragma once
#include <fmt/format.h>

#include <optional>
#include <string>

#include "system/status_line.h"
#include "trainer/run/nvidia_rates.h"
#include "trainer/run/options.h"

struct ExpectedSpeed {
    double tokens_per_second = 0;  // of one process; 0: unknown
    std::string source;
};

// The speed that --tokens-per-second gives, else an estimate from NVIDIA's peak for the GPU that --device
// names, or for this machine's device.
inline ExpectedSpeed expected_speed(const Options& o, const std::string& this_device) {
    constexpr double share = 0.38;  // of the peak: llm.c reaches that with 124M on an H100
    if (o.plan.tokens_per_second > 0) return {o.plan.tokens_per_second, "as given"};
    const std::string device = o.plan.device.empty() ? this_device : o.plan.device;
    const std::optional<double> peak = nvidia_matmul_rate(device, o.system.dtype);
    if (!peak) return {};
    // Recomputed blocks add a second forward pass, which is a third of a step's work.
    const double again = o.system.recompute == Recompute::block ? 4.0 / 3 : 1;
    return {share * *peak / (again * flops_per_token(o.model.config, o.batch.seq_len)),
            fmt::format("an estimate, not measured: {:.0f} % of {}'s {:.0f} TFLOP/s", share * 100, device,
                        *peak * 1e-12)};
}

// The steps and tokens of the run, unless its data decide them; and, if the speed is known, a line with the
// time that they take.
inline std::string length_plan(const Options& o, const ExpectedSpeed& speed) {
    const double all = speed.tokens_per_second * o.world_size;
    const std::string rate =
        fmt::format("{:.0f} tokens/s{} ({})", all,
                    o.world_size == 1 ? "" : fmt::format(" of {} processes", o.world_size), speed.source);
    if (o.length.epochs > 0) {
        return fmt::format("run: {:g} epochs of the training data", o.length.epochs) +
               (all > 0 ? "\ntime: the data decide, at " + rate : "");
    }
    const int steps = o.step_count(0);
    const double tokens = static_cast<double>(steps) * static_cast<double>(o.batch.total);
    const std::string run = fmt::format("run: {} steps, {}", steps,
                                        tokens < 1e8 ? fmt::format("{:.3f} million tokens", tokens * 1e-6)
                                                     : fmt::format("{:.1f} billion tokens", tokens * 1e-9));
    if (all == 0) return run;
    const double seconds = tokens / all, hours = seconds / 3600;
    return run + fmt::format("\ntime: {}{} at {}",
                             hours < 1 ? duration_text(seconds) : fmt::format("{:.1f} hours", hours),
                             hours < 100 ? "" : fmt::format(" ({:.0f} days)", hours / 24), rate);
}
