#include "trainer/engine/steps_in_flight.h"

#include <cmath>
#include <utility>

#include "system/error.h"

StepsInFlight::~StepsInFlight() {
    for (const event_t event : ended_) {
        if (event) simt::event_destroy(event);
    }
    simt::pinned_free(steps_);
}

void StepsInFlight::allocate(stream_t stream) {
    steps_ = static_cast<Step*>(simt::pinned_malloc(kept * sizeof(Step)));
    for (event_t& event : ended_) {
        event = simt::event_create();
        simt::event_record(event, stream);
    }
}

void StepsInFlight::start_clock(stream_t stream) {
    if (count() == 0) simt::event_record(ended_[(begun_ + kept - 1) % kept], stream);
}

StepsInFlight::Step& StepsInFlight::begin() {
    if (count() == 2)
        throw Error("begin_update: two steps are under way; expected finish_update before a third");
    return steps_[begun_ % kept];
}

void StepsInFlight::end(std::string vetoed, stream_t stream) {
    vetoed_[begun_ % kept] = std::move(vetoed);
    simt::event_record(ended_[begun_ % kept], stream);
    begun_++;
}

StepResult StepsInFlight::finish() {
    if (count() == 0) throw Error("finish_update: no update has begun");
    const size_t step = finished_ % kept, before = (finished_ + kept - 1) % kept;
    const double ms = static_cast<double>(simt::event_elapsed_ms(ended_[before], ended_[step]));  // waits
    StepResult result = result_of(step);
    result.ms = ms;
    result.skipped = vetoed_[step];
    if (!result.has_targets) result.skipped = "no target counts, because masks hide all of them";
    else if (result.skipped.empty() && !std::isfinite(result.grad_norm))
        result.skipped = "grad_norm is not finite";
    finished_++;
    return result;
}

StepResult StepsInFlight::result_of(size_t index) const {
    const Step& step = steps_[index];
    const StepSums& sums = step.sums;
    return {.loss = sums.loss / static_cast<float>(step.targets),
            .grad_norm = static_cast<float>(step.gradient_weight()) * std::sqrt(sums.norm_squared),
            .has_targets = step.targets > 0,
            .any = {.stop = sums.stop > 0, .writing = sums.writing > 0, .unread = sums.unread > 0}};
}
