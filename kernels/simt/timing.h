// timing.h: the time of work on a stream, by the device's clock
#pragma once
#include <algorithm>
#include <cstddef>

#include "kernels/simt/device.h"

namespace simt {

// Owns an event.
class Event {
public:
    Event() : event_(event_create()) {}
    Event(const Event&) = delete;
    ~Event() { event_destroy(event_); }
    operator event_t() const { return event_; }

private:
    event_t event_;
};

// Milliseconds on the device for `repeats` calls of body(stream), each of which starts the work once.
template <class Body>
double milliseconds(size_t repeats, Body body) {
    const Event start, stop;
    event_record(start, nullptr);
    for (size_t i = 0; i < repeats; i++) body(stream_t{});
    event_record(stop, nullptr);
    return event_elapsed_ms(start, stop);
}

// Milliseconds of the fastest of `tries` calls, after one call to warm up.
template <class Body>
double fastest_milliseconds(int tries, Body body) {
    body(stream_t{});
    double best = milliseconds(1, body);
    for (int i = 1; i < tries; i++) best = std::min(best, milliseconds(1, body));
    return best;
}

}  // namespace simt
