// profile.h: what each operation of a training step takes: a table for --profile, and named ranges on a
//   timeline (NVTX), wherever it is not a graph that is replayed.
//   The model says where an operation begins. Within a measured step an event is recorded there: the device's
//   clock between two events is the operation's time, nothing is waited for before the step is over, and on
//   the CPU the clock is the host's. In all other steps only the range is named, which costs a few
//   nanoseconds while no tool listens.
#pragma once
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/simt/timing.h"
#include "trainer/model/cost.h"

class Profile {
public:
    // steps before the measured ones: libraries plan, memory is first touched
    static constexpr int warm_up = 3;

    // What follows on the stream is this operation, until the next begin or the end. name lives as long as
    // the profile.
    void begin(const char* name, const Cost& cost, stream_t stream);
    void end(stream_t stream);

    // Measures so many steps, after those that warm up.
    void measure(int steps) { wanted_ = steps; }
    // A step's events must stand in the stream as they are recorded: what replays a captured step must not do
    // so now.
    bool measuring() const { return measuring_; }
    void begin_step();  // the last step that warms up is a rehearsal, which makes the events
    // ms: what the step took by the caller's clock. Waits for the step. True for the last one that was to be
    // measured.
    bool end_step(double ms);

    // The mean of a step. rate: "bytes" or "flops", whichever comes closer to its peak; share_of_peak: of
    // that one; null without a cost.
    //   {"steps":..,"step_ms":..,"operations_ms":..,"peak_bytes_per_second":..,"peak_flops_per_second":..,
    //    "operations":[{"name":..,"shape":[N,C,OC] or
    //    null,"calls":..,"ms":..,"share":..,"bytes":..,"flops":..,"rate":..,"share_of_peak":..}]}
    nlohmann::ordered_json report(const Peaks& peaks) const;

private:
    struct Operation {
        const char* name;
        Cost cost;  // of all calls together
        int calls = 0;
        double ms = 0;
    };
    static constexpr size_t none = static_cast<size_t>(-1);

    size_t operation(const char* name, const Cost& cost);
    void mark(size_t operation, stream_t stream);

    bool open_ = false, measuring_ = false;
    int wanted_ = 0, steps_ = 0;         // steps_: begun, those that warm up included
    double step_ms_ = 0;                 // of all measured steps
    std::vector<Operation> operations_;  // in the order in which they were first met
    // what begins at the events_ of the same place: an operation, or none
    std::vector<size_t> marks_;
    std::vector<std::unique_ptr<simt::Event>> events_;
};
