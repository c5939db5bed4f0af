// profile.h: the time of each operation of a training step, as a table for --profile and as named ranges
// on a timeline (NVTX). Operations inside a replayed graph have no ranges.
//   The model marks where each operation begins. In a measured step an event is recorded at each mark,
//   and the device time between two events is the operation's time; the host waits only at the end of the
//   step. (On the CPU the host's clock is used.) In other steps only the range is named, which costs a
//   few nanoseconds while no tool records.
#pragma once
#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "kernels/simt/timing.h"
#include "trainer/engine/cost.h"

class Profile {
public:
    // Steps before the measured ones, in which libraries plan and memory is first touched.
    static constexpr int warm_up = 3;

    // Work that follows on the stream belongs to this operation, until the next begin() or end(). `name`
    // must live as long as the profile.
    void begin(const char* name, const Cost& cost, stream_t stream);
    void end(stream_t stream);

    // Measures this many steps, after the warm-up steps.
    void measure(int steps) { wanted_ = steps; }
    // True in a measured step: its events must be recorded one by one, so graphs must not be replayed.
    bool measuring() const { return measuring_; }
    void begin_step();  // the last warm-up step is a rehearsal, which creates the events
    // ms: the step's duration by the caller's clock. Waits for the step. True for the last step to be
    // measured.
    bool end_step(double ms);

    // Means over the measured steps. "rate" is "bytes" or "flops", whichever comes closer to its peak,
    // and "share_of_peak" refers to it; both are null for an operation without a cost. A peak is at least
    // what an operation reached. The share alone is null for an operation that moved its bytes faster than
    // memory can, because it found them in the caches.
    //   {"steps":..,"step_ms":..,"operations_ms":..,"peak_bytes_per_second":..,"peak_flops_per_second":..,
    //    "operations":[{"name":..,"shape":[N,C,OC] or null,"calls":..,"ms":..,"share":..,"bytes":..,
    //                   "flops":..,"rate":..,"share_of_peak":..}]}
    nlohmann::ordered_json report(const Peaks& measured) const;

private:
    struct Operation {
        const char* name;
        Cost cost;  // sum over all calls
        int calls = 0;
        double ms = 0;
    };
    static constexpr size_t none = static_cast<size_t>(-1);

    size_t operation(const char* name, const Cost& cost);
    Peaks reached() const;
    void mark(size_t operation, stream_t stream);

    bool open_ = false, measuring_ = false;
    int wanted_ = 0, steps_ = 0;         // steps_: steps begun, warm-up included
    double step_ms_ = 0;                 // sum over all measured steps
    std::vector<Operation> operations_;  // in order of first use
    // marks_[i]: the operation that begins at events_[i], or none
    std::vector<size_t> marks_;
    std::vector<std::unique_ptr<simt::Event>> events_;
};
