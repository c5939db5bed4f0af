#include "trainer/model/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "system/error.h"

void Schedule::check() const {
    CHECK(shape == "cosine" || shape == "linear" || shape == "constant" || shape == "wsd",
          "unknown schedule '{}'; expected cosine, linear, constant or wsd", shape);
    CHECK(steps >= 0 && warmup >= 0, "a schedule of {} steps with {} of warmup; expected neither below 0",
          steps, warmup);
}

double Schedule::at(int step) const {
    const double t = step - 1, S = steps, W = warmup, floor = lr * min_fraction;
    if (t < W) return lr * (t + 1) / W;
    const double p = (t - W) / (S - W);
    if (shape == "cosine") return floor + 0.5 * (1.0 + std::cos(std::numbers::pi * p)) * (lr - floor);
    if (shape == "linear") return lr + p * (floor - lr);
    if (shape == "wsd") {
        // r = 0 at the first step of the fall, so a run of up to five steps needs two steps for it.
        const double begin = std::max(std::min(std::floor(0.8 * S), S - 2), 0.0);
        return t < begin ? lr : floor + (1 - std::sqrt((t - begin) / (S - begin))) * (lr - floor);
    }
    return lr;
}
