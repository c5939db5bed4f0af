#include "kernels/gemm/gemm_tuner.h"

#include <algorithm>

#include "kernels/simt/bfloat16.h"

namespace {

constexpr int timed_runs = 4;
constexpr double hopeless = 1.3;           // a way that takes so many times the best is not repeated
constexpr size_t pieces = 16, piece = 64;  // an output is compared in so many pieces of so many values
// Largest difference, relative to the norm. Another order of additions, and rounding to bf16 or TF32,
// differ by less than 0.002; a term that is missing or counted twice differs by 0.25 even if it affects
// only one of the pieces.
constexpr double tolerance = 0.01;

bool agree(const std::vector<float>& values, const std::vector<float>& expected) {
    double difference = 0, squares = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        const double e = expected[i], d = values[i] - e;
        difference += d * d;
        squares += e * e;
    }
    return difference <= tolerance * tolerance * squares;  // false where there is a NaN
}

template <class T>
std::vector<float> samples(const void* values, size_t count, stream_t stream) {
    std::vector<T> read(std::min(count, pieces * piece));
    if (read.size() == count) {
        simt::copy_to_host(read.data(), values, count * sizeof(T), stream);
    } else {
        for (size_t i = 0; i < pieces; i++) {
            const size_t begin = (count - piece) / (pieces - 1) * i;
            simt::copy_to_host(read.data() + i * piece, static_cast<const T*>(values) + begin,
                               piece * sizeof(T), stream);
        }
    }
    simt::stream_synchronize(stream);
    std::vector<float> result(read.size());
    std::transform(read.begin(), read.end(), result.begin(),
                   [](T value) { return static_cast<float>(value); });
    return result;
}

}  // namespace

GemmTuner::GemmTuner(double seconds, void* spare, size_t spare_bytes)
    : limit_(seconds), filling_(spare), filling_bytes_(spare_bytes) {
    const simt::DeviceInfo info = simt::device_info();
    const size_t wanted = 2 * info.cache_bytes;
    // The library loads code for its kernels, which needs memory too.
    constexpr size_t left_free = size_t{128} << 20;
    if (info.free_memory > wanted + left_free) {
        own_ = simt::DeviceBuffer<char>(wanted);
        filling_ = own_.data();
        filling_bytes_ = wanted;
    } else {
        filling_bytes_ = std::min(wanted, spare_bytes);
    }
    start_ = simt::event_create();
    stop_ = simt::event_create();
}

GemmTuner::~GemmTuner() {
    simt::event_destroy(start_);
    simt::event_destroy(stop_);
}

double GemmTuner::seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

double GemmTuner::cold_ms(const std::function<void()>& launch, stream_t stream, double best) {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i == 0 || (i < timed_runs && least < hopeless * best); i++) {
        simt::fill_zero(filling_, filling_bytes_, stream);
        simt::event_record(start_, stream);
        launch();
        simt::event_record(stop_, stream);
        least = std::min(least, static_cast<double>(simt::event_elapsed_ms(start_, stop_)));
        runs_++;
    }
    return least;
}

// Runs a way twice on outputs of zeros and samples them: a product that overwrites leaves the same after
// both runs, one that adds leaves twice that. The result is empty if the way does not run.
GemmTuner::Samples GemmTuner::result(size_t way, const std::function<bool(size_t)>& run,
                                     const std::vector<Output>& outputs, stream_t stream) {
    for (const Output& o : outputs)
        simt::fill_zero(o.values, o.count * (o.bf16 ? sizeof(bfloat16) : sizeof(float)), stream);
    for (int i = 0; i < 2; i++) {
        if (!run(way)) return {};
    }
    Samples all;
    for (const Output& o : outputs)
        all.push_back(o.bf16 ? samples<bfloat16>(o.values, o.count, stream)
                             : samples<float>(o.values, o.count, stream));
    return all;
}

std::optional<GemmTuner::Fastest> GemmTuner::fastest(size_t count, const std::function<bool(size_t)>& run,
                                                     const std::vector<Output>& outputs, stream_t stream) {
    std::optional<Fastest> best;
    Samples expected;
    for (size_t way = 0; way < count && !(best && out_of_time()); way++) {
        const Samples values = result(way, run, outputs, stream);
        if (values.empty()) continue;
        // Outputs are compared one by one, because a bias gradient is small beside a weight's.
        if (best && !std::equal(values.begin(), values.end(), expected.begin(), agree)) continue;
        const auto launch = [&] { run(way); };
        if (!best) {
            expected = values;
            const double ms = cold_ms(launch, stream);
            best = Fastest{way, ms, ms};
        } else if (const double ms = cold_ms(launch, stream, best->ms); ms < best->ms) {
            best->way = way;
            best->ms = ms;
        }
    }
    return best;
}
