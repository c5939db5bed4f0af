// outlier_detector.h: steps whose loss or gradient norm lies far above what the steps before it had, so that
// their update can be left out.
//   z = (value - mean) / standard deviation, both over the 128 steps before (the window of llm.c). Until
//   there are 128, no step is an outlier. An outlier enters the window as at most mean + (limit + 3) *
//   deviation: one spike, however high, does not hide the next, and yet a level that has risen for good
//   becomes the new mean. What is not finite never enters.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

class OutlierDetector {
public:
    static constexpr size_t window = 128;

    // Limits of z; 0: never an outlier by this.
    OutlierDetector(double loss_limit, double norm_limit);

    // Is there anything to judge? If not, no step need wait for its loss and its norm.
    bool active() const { return loss_.limit > 0 || norm_.limit > 0; }

    // Takes a step in, and says why its update must be left out, such as "loss z 8.31 > 7"; empty: it is as
    // it should be. A gradient norm that is
    // not finite is not judged: no optimizer takes such a step.
    std::string judge(double loss, double grad_norm);

    // What a run that goes on needs to judge as this one would have: {"loss": [oldest, ..], "grad_norm":
    // [..]}; empty lists where the limit is 0.
    nlohmann::json state() const;
    // UsageError if it is no such object. {}: starts anew.
    void restore(const nlohmann::json& state);

private:
    struct Series {
        const char* name;
        double limit;
        std::vector<double> values;  // oldest first; its memory is there from the start

        std::string judge(double value);
        void add(double value);
        nlohmann::json state() const { return values; }
        void restore(const nlohmann::json& state);
    };
    Series loss_, norm_;
};
