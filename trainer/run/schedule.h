// schedule.h: the learning rate of each step.
//   t = step - 1, of S steps with W of warmup; floor = lr * min_fraction. In the warmup, t < W, the rate
//   is lr * (t + 1) / W. After it:
//   cosine    floor + (lr - floor) * (1 + cos(pi * p)) / 2     p = (t - W) / (S - W)
//   linear    floor + (lr - floor) * (1 - p)
//   constant  lr
//   wsd       lr, and over the last part, `cooldown` of the steps, floor + (lr - floor) * (1 - sqrt(r)) or,
//             with the shape linear, * (1 - r), where r goes from 0 to 1 (Hägele et al. 2024,
//             arXiv:2405.18392); at least the last of two steps or more is below lr
//   llm.c has the same schedules, with a cooldown of 0.2 and sqrt.
#pragma once
#include <string>
#include <vector>

// The shapes, as --schedule names them.
std::vector<std::string> schedule_names();
// The shapes of wsd's fall, as --cooldown-shape names them.
std::vector<std::string> cooldown_shapes();

// A warmup longer than the run is allowed: the rate then rises until the end.
struct Schedule {
    std::string shape = "cosine";
    int steps = 0, warmup = 0;
    double lr = 0, min_fraction = 0;
    double cooldown = 0.2;
    std::string cooldown_shape = "sqrt";

    double at(int step) const;  // steps count from 1
};
