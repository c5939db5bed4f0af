#include "trainer/run/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "system/error.h"

namespace {

// The rate after the warmup, at t of S steps; s.lr falls to `floor`.
using Rate = double (*)(const Schedule& s, double t, double floor);

// The part of the steps after the warmup that lies before t.
double passed(const Schedule& s, double t) { return (t - s.warmup) / (s.steps - s.warmup); }

const std::pair<const char*, Rate> shapes[] = {
    {"cosine",
     [](const Schedule& s, double t, double floor) {
         return floor + 0.5 * (1.0 + std::cos(std::numbers::pi * passed(s, t))) * (s.lr - floor);
     }},
    {"linear",
     [](const Schedule& s, double t, double floor) { return s.lr + passed(s, t) * (floor - s.lr); }},
    {"constant", [](const Schedule& s, double, double) { return s.lr; }},
    {"wsd",
     [](const Schedule& s, double t, double floor) {
         // r = 0 at the first step of the fall, so a run of up to five steps needs two steps for it.
         const double S = s.steps, begin = std::max(std::min(std::floor((1 - s.cooldown) * S), S - 2), 0.0);
         if (t < begin) return s.lr;
         const double r = (t - begin) / (S - begin), fallen = s.cooldown_shape == "linear" ? r : std::sqrt(r);
         return floor + (1 - fallen) * (s.lr - floor);
     }},
};

}  // namespace

std::vector<std::string> schedule_names() {
    std::vector<std::string> names;
    for (const auto& [name, rate] : shapes) names.emplace_back(name);
    return names;
}

std::vector<std::string> cooldown_shapes() { return {"sqrt", "linear"}; }

double Schedule::at(int step) const {
    const double t = step - 1;
    if (t < warmup) return lr * (t + 1) / warmup;
    for (const auto& [name, rate] : shapes) {
        if (shape == name) return rate(*this, t, lr * min_fraction);
    }
    throw Error("no schedule is called " + shape);
}
