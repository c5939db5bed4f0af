#include "trainer/run/profile_table.h"

#include <fmt/format.h>

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
