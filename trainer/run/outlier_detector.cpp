#include "trainer/run/outlier_detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "system/error.h"
#include "system/json_text.h"

OutlierDetector::OutlierDetector(double loss_limit, double norm_limit)
    : loss_{"loss", loss_limit, {}}, norm_{"grad_norm", norm_limit, {}} {
    for (Series* series : {&loss_, &norm_}) series->values.reserve(window);
}

std::string OutlierDetector::judge(double loss, double grad_norm) {
    // Both series take in every step, whatever the other one finds.
    const std::string by_loss = loss_.judge(loss),
                      by_norm = std::isfinite(grad_norm) ? norm_.judge(grad_norm) : "";
    return by_loss.empty() || by_norm.empty() ? by_loss + by_norm : by_loss + ", " + by_norm;
}

std::string OutlierDetector::Series::judge(double value) {
    if (limit <= 0) return "";
    if (!std::isfinite(value)) return fmt::format("{} is not finite", name);
    if (values.size() < window) return add(value), "";
    double sum = 0, squares = 0;
    for (const double v : values) sum += v;
    const double mean = sum / window;
    for (const double v : values) squares += (v - mean) * (v - mean);
    const double deviation = std::sqrt(squares / window);
    // without any variation no value is an outlier
    const double z = deviation > 0 ? (value - mean) / deviation : 0.0;
    add(deviation > 0 ? std::min(value, mean + (limit + 3) * deviation) : value);
    return z > limit ? fmt::format("{} z {:.2f} > {:g}", name, z, limit) : "";
}

void OutlierDetector::Series::add(double value) {
    if (values.size() == window) values.erase(values.begin());
    values.push_back(value);
}

nlohmann::json OutlierDetector::state() const {
    return {{loss_.name, loss_.state()}, {norm_.name, norm_.state()}};
}

void OutlierDetector::restore(const nlohmann::json& state) {
    CHECK(state.is_object(), "the outlier detector's state is {}; expected an object", state.type_name());
    loss_.restore(state.value(loss_.name, nlohmann::json::array()));
    norm_.restore(state.value(norm_.name, nlohmann::json::array()));
}

void OutlierDetector::Series::restore(const nlohmann::json& state) {
    CHECK(state.is_array() && state.size() <= window,
          "the outlier detector's state: {} is no list of at most {} numbers", name, window);
    values.clear();
    for (const nlohmann::json& value : state) {
        CHECK(value.is_number() && std::isfinite(value.get<double>()),
              "the outlier detector's state: {} has {} where a number is expected", name, shown(value));
        values.push_back(value.get<double>());
    }
    if (limit <= 0) values.clear();
}
