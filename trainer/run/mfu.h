// mfu.h: model FLOPs utilization (MFU), a step's operations as a fraction of the machine's peak
#pragma once
#include <algorithm>
#include <functional>
#include <utility>

class Mfu {
public:
    // peak: one process's FLOP/s. step_flops: its operations in a step. measure: measures the peak again.
    Mfu(double peak, double step_flops, std::function<double()> measure)
        : peak_(peak), step_flops_(step_flops), measure_(std::move(measure)) {}

    // The MFU of a step that took `ms`; at most 1. A step that is faster than the peak shows that the
    // machine was busy when the peak was measured. It is then measured again, and no less than this step's
    // rate, because the machine may still be busy.
    double of(double ms) {
        const double rate = step_flops_ / (ms * 1e-3);
        if (rate > peak_) peak_ = std::max(measure_(), rate);
        return rate / peak_;
    }
    double peak() const { return peak_; }

private:
    double peak_, step_flops_;
    std::function<double()> measure_;
};
