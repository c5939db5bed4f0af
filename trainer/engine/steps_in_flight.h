// steps_in_flight.h: the steps that the device has not finished, while the host is ahead of it.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

#include "kernels/simt/device.h"

// Flags that are reduced over all processes together with a step's loss and norm, at no extra cost.
struct StepFlags {
    bool stop = false;     // a signal asked this process to end the run
    bool writing = false;  // a checkpoint is being written
    bool unread = false;   // this process could not read its data; no process makes the update
};

struct StepResult {
    // Mean over the step's targets that count, on all processes; NaN if none counts.
    float loss = 0;
    // Before clipping; if it is not finite, the update was skipped. NaN if no target counts.
    float grad_norm = 0;
    bool has_targets = true;   // false: masks hide every target of the step
    std::string skipped = {};  // why the update was skipped; empty if it was not
    // Time since the end of the previous step, or since begin_step() if that was later.
    double ms = 0;
    StepFlags any = {};  // true where any process set the flag
};

// Called before the update with the step's loss and gradient norm. Returns the reason why the update must
// be skipped, or an empty string if it may be made.
using Veto = std::function<std::string(const StepResult&)>;

// The numbers that one all-reduce sums over the processes at the end of a step.
struct StepSums {
    float loss = 0, norm_squared = 0;         // of all targets, and of the gradients
    float stop = 0, writing = 0, unread = 0;  // processes that set the flag
};

class StepsInFlight {
public:
    // A step's numbers in pinned memory.
    struct Step {
        double rates[2];  // to the device: learning rate and gradient weight
        StepSums sums;    // from the device
        double targets;   // the step's targets that are not ignored; 0 is possible
        double gradient_weight() const { return rates[1]; }
    };

    StepsInFlight() = default;
    ~StepsInFlight();
    StepsInFlight(const StepsInFlight&) = delete;
    void allocate(stream_t stream);

    size_t count() const { return begun_ - finished_; }
    // A step's time counts from here if no other step is in flight.
    void start_clock(stream_t stream);
    // The next step; Error if two are in flight already.
    Step& begin();
    // The result of the step that begin() returned, once its sums have reached the host.
    StepResult result() const { return result_of(begun_ % kept); }
    // The device has been given all work of the step. vetoed: why its update is skipped, or "".
    void end(std::string vetoed, stream_t stream);
    // Waits for the oldest step. Error if none is in flight.
    StepResult finish();
    // The weight of the step that began last; 1 before the first.
    double gradient_weight() const { return begun_ > 0 ? steps_[(begun_ - 1) % kept].gradient_weight() : 1; }

private:
    static constexpr size_t kept =
        3;  // two in flight, and the one before, whose end begins the next one's time
    StepResult result_of(size_t index) const;

    Step* steps_ = nullptr;  // (kept)
    event_t ended_[kept] = {};
    std::string vetoed_[kept];
    size_t begun_ = 0, finished_ = 0;
};
