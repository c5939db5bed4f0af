// gemm_tuner.h: times several ways to compute the same thing, and finds the fastest that is right
//   Caches are cold before every timed run, as they are in training, where all tensors of a step pass
//   through them between two runs of a product: the second-level cache is filled with other data first.
//   The shortest of several times counts, since disturbances only make a run longer.
#pragma once
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/simt/device.h"

class GemmTuner {
public:
    // An array that each way writes.
    struct Output {
        void* values;
        size_t count;
        bool bf16;  // false: fp32
    };
    struct Fastest {
        size_t way;
        double ms, first_ms;  // time of this way, and of the first way that runs
    };

    // `spare` is memory that fills the cache if the GPU has too little left to allocate a buffer for it.
    // The products' workspace will do, although a product that uses it then finds a part of it in the
    // cache.
    GemmTuner(double seconds, void* spare, size_t spare_bytes);
    ~GemmTuner();
    GemmTuner(const GemmTuner&) = delete;

    // Returns the fastest of `count` ways, or nothing if none runs. run(i) launches way i, which writes
    // the outputs or adds to them; it returns false if that is impossible. The first way that runs is
    // taken as right, and ways that disagree with it are left out. When the time is over, the fastest so
    // far is returned. The outputs are undefined afterwards.
    std::optional<Fastest> fastest(size_t count, const std::function<bool(size_t)>& run,
                                   const std::vector<Output>& outputs, stream_t stream);
    // Milliseconds of what `launch` launches, with cold caches. Stops repeating early if it takes much
    // longer than `best`.
    double cold_ms(const std::function<void()>& launch, stream_t stream,
                   double best = std::numeric_limits<double>::infinity());

    double seconds() const;  // since construction
    bool out_of_time() const { return seconds() >= limit_; }
    size_t runs() const { return runs_; }  // number of timed runs

private:
    using Samples = std::vector<std::vector<float>>;  // some values of each output
    Samples result(size_t way, const std::function<bool(size_t)>& run, const std::vector<Output>& outputs,
                   stream_t stream);

    const double limit_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    simt::DeviceBuffer<char> own_;  // fills the cache, unless it is `spare`
    void* filling_;
    size_t filling_bytes_;
    event_t start_, stop_;
    size_t runs_ = 0;
};
