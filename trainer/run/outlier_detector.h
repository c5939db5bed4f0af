// outlier_detector.h: finds steps whose loss or gradient norm is far above that of the steps before, so
// that their update can be skipped.
//   z = (value - mean) / standard deviation, both over the 128 steps before (the window of llm.c). With
//   fewer than 128 steps, no step is an outlier. An outlier enters the window as at most
//   mean + (limit + 3) * deviation, so one high spike does not hide the next one, yet a level that has risen
//   for good becomes the new mean. A value that is not finite never enters the window.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

class OutlierDetector {
public:
    static constexpr size_t window = 128;

    // Limits of z for the loss and the gradient norm; 0: no limit.
    OutlierDetector(double loss_limit, double norm_limit);

    // True if there is a limit. If not, no step has to wait for its loss and norm.
    bool active() const { return loss_.limit > 0 || norm_.limit > 0; }

    // Takes in a step and returns the reason why its update must be skipped, such as "loss z 8.31 > 7";
    // empty if there is none. A gradient norm that is not finite is not judged, since no optimizer takes
    // such a step.
    std::string judge(double loss, double grad_norm);

    // The state that a resumed run needs to judge as this one would: {"loss": [oldest, ..], "grad_norm":
    // [..]}; a list is empty if its limit is 0.
    nlohmann::json state() const;
    // UsageError if `state` is not such an object. {}: starts with empty windows.
    void restore(const nlohmann::json& state);

private:
    struct Series {
        const char* name;
        double limit;
        std::vector<double> values;  // oldest first; its memory is reserved at the start

        std::string judge(double value);
        void add(double value);
        nlohmann::json state() const { return values; }
        void restore(const nlohmann::json& state);
    };
    Series loss_, norm_;
};
