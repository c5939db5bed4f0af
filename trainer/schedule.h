// schedule.h: the learning rate of a step.
//   t = step - 1 of S steps, W of them warmup: t < W: lr * (t + 1) / W; then with p = (t - W) / (S - W)
//   cosine, linear: from lr down to lr * min_fraction    constant: lr    wsd: lr, and over the last fifth linearly down to lr * min_fraction
#pragma once
#include <string>

struct Schedule {
    std::string shape = "cosine";
    int steps = 0, warmup = 0;
    double lr = 0, min_fraction = 0;

    // UsageError for an unknown shape or negative lengths. A warmup longer than the run is allowed: the rate then rises to its end.
    void check() const;
    double at(int step) const;  // step counts from 1
};
