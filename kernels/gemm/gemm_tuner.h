// gemm_tuner.h: finds by timing which of several ways to compute the same thing is the fastest, and still
// right.
//   Caches are cold before every run that is timed, as they are in training, where all of a step's tensors
//   have gone through them since: the second level is filled with something else first. The least of several
//   times counts: what disturbs a run only makes it longer.
#pragma once
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/simt/device.h"

class GemmTuner {
public:
    // What a way writes.
    struct Output {
        void* values;
        size_t count;
        bool bf16;  // else fp32
    };
    struct Fastest {
        size_t way;
        double ms, first_ms;  // its own, and of the first way that runs
    };

    // spare: memory to fill the cache from where the GPU has too little left to allocate some for the while.
    // The products' workspace will do, though one that uses it finds a part of it in the cache.
    GemmTuner(double seconds, void* spare, size_t spare_bytes);
    ~GemmTuner();
    GemmTuner(const GemmTuner&) = delete;

    // The fastest of `count` ways; none if none runs. run(i) launches the ith, which writes the outputs or
    // adds to them; false: it cannot.
    // The first that runs is right; others must agree with it, or do not count. The outputs are left with
    // anything in them. When the time is over, the fastest until then.
    std::optional<Fastest> fastest(size_t count, const std::function<bool(size_t)>& run,
                                   const std::vector<Output>& outputs, stream_t stream);
    // Of whatever `launch` launches. Not timed to the end if it takes much longer than `best`.
    double cold_ms(const std::function<void()>& launch, stream_t stream,
                   double best = std::numeric_limits<double>::infinity());

    double seconds() const;  // since the beginning
    bool out_of_time() const { return seconds() >= limit_; }
    size_t runs() const { return runs_; }  // that were timed

private:
    using Samples = std::vector<std::vector<float>>;  // of each output
    Samples result(size_t way, const std::function<bool(size_t)>& run, const std::vector<Output>& outputs,
                   stream_t stream);

    const double limit_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    simt::DeviceBuffer<char> own_;  // for the cache
    void* filling_;
    size_t filling_bytes_;
    event_t start_, stop_;
    size_t runs_ = 0;
};
