// schedule.h: the learning rate of a step.
//   With t = step - 1 of S steps, W of them warmup, and floor = lr * min_fraction: t < W: lr * (t + 1) / W.
//   After that
//   cosine    floor + (lr - floor) * (1 + cos(pi * p)) / 2     p = (t - W) / (S - W)
//   linear    floor + (lr - floor) * (1 - p)
//   constant  lr
//   wsd       lr, and over the last fifth floor + (lr - floor) * (1 - sqrt(r)), r from 0 to 1 (Hägele et al.
//             2024, arXiv:2405.18392)
//   These are llm.c's schedules too.
#pragma once
#include <string>

struct Schedule {
    std::string shape = "cosine";
    int steps = 0, warmup = 0;
    double lr = 0, min_fraction = 0;

    // UsageError for an unknown shape or negative lengths. A warmup longer than the run is allowed: the rate
    // then rises to its end.
    void check() const;
    double at(int step) const;  // step counts from 1
};
