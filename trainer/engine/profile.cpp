#include "trainer/engine/profile.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

void Profile::begin(const char* name, const Cost& cost, stream_t stream) {
    if (open_) simt::range_pop();
    open_ = true;
    simt::range_push(name);
    if (measuring_) mark(operation(name, cost), stream);
}

void Profile::end(stream_t stream) {
    if (!open_) return;
    open_ = false;
    simt::range_pop();
    if (measuring_) mark(none, stream);
}

size_t Profile::operation(const char* name, const Cost& cost) {
    auto found = std::find_if(operations_.begin(), operations_.end(), [&](const Operation& o) {
        return std::strcmp(o.name, name) == 0 && o.cost.product == cost.product;
    });
    if (found == operations_.end()) found = operations_.insert(found, {name, {.product = cost.product}});
    found->calls++;
    found->cost.bytes += cost.bytes;
    found->cost.flops += cost.flops;
    return static_cast<size_t>(found - operations_.begin());
}

void Profile::mark(size_t operation, stream_t stream) {
    if (marks_.size() == events_.size()) events_.push_back(std::make_unique<simt::Event>());
    simt::event_record(*events_[marks_.size()], stream);
    marks_.push_back(operation);
}

void Profile::begin_step() {
    if (wanted_ == 0 || steps_ == warm_up + wanted_) return;
    measuring_ = ++steps_ >= warm_up;
}

bool Profile::end_step(double ms) {
    if (!measuring_) return false;
    measuring_ = false;
    if (steps_ == warm_up) {
        operations_.clear();
        marks_.clear();
        return false;
    }
    step_ms_ += ms;
    for (size_t i = 0; i + 1 < marks_.size(); i++) {
        if (marks_[i] != none)
            operations_[marks_[i]].ms +=
                static_cast<double>(simt::event_elapsed_ms(*events_[i], *events_[i + 1]));
    }
    marks_.clear();
    return steps_ == warm_up + wanted_;
}

// The highest rates of operations; those of bytes only if a call moved more than caches hold.
Peaks Profile::reached() const {
    constexpr size_t more_than_caches_hold = size_t{64} << 20;
    Peaks highest;
    for (const Operation& o : operations_) {
        if (o.ms <= 0) continue;
        const double rate = 1 / (o.ms * 1e-3);
        const bool in_memory = o.cost.bytes / static_cast<size_t>(o.calls) > more_than_caches_hold;
        highest = larger(highest, {in_memory ? static_cast<double>(o.cost.bytes) * rate : 0,
                                   static_cast<double>(o.cost.flops) * rate});
    }
    return highest;
}

nlohmann::ordered_json Profile::report(const Peaks& measured) const {
    const Peaks peaks = larger(measured, reached());
    const double steps = std::max(1, steps_ - warm_up), step_ms = step_ms_ / steps;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    double sum = 0;
    for (const Operation& o : operations_) {
        const double ms = o.ms / steps, seconds = ms * 1e-3,
                     bytes = static_cast<double>(o.cost.bytes) / steps,
                     flops = static_cast<double>(o.cost.flops) / steps;
        nlohmann::ordered_json row = {{"name", o.name}, {"shape", nullptr},      {"calls", o.calls / steps},
                                      {"ms", ms},       {"share", ms / step_ms}, {"bytes", bytes},
                                      {"flops", flops}, {"rate", nullptr},       {"share_of_peak", nullptr}};
        if (o.cost.product[0] > 0) row["shape"] = o.cost.product;
        if (bytes + flops > 0 && seconds > 0) {
            const double of_bandwidth = bytes / seconds / peaks.bytes_per_second,
                         of_arithmetic = flops / seconds / peaks.flops_per_second;
            row["rate"] = of_bandwidth > of_arithmetic ? "bytes" : "flops";
            // The operation that reached a peak may be above it by a rounding.
            if (of_bandwidth <= 1 + 1e-9)
                row["share_of_peak"] = std::min(1.0, std::max(of_bandwidth, of_arithmetic));
        }
        rows.push_back(std::move(row));
        sum += ms;
    }
    return {{"steps", steps_ - warm_up},
            {"step_ms", step_ms},
            {"operations_ms", sum},
            {"peak_bytes_per_second", peaks.bytes_per_second},
            {"peak_flops_per_second", peaks.flops_per_second},
            {"operations", std::move(rows)}};
}
