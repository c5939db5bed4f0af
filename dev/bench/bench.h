// bench.h: the frame of the benchmarks, one binary an operation, over Google Benchmark.
//   A benchmark says how many bytes it must move and how many operations it must do; the frame measures in the same run what the machine
//   can do (a copy of a buffer larger than its caches, and its best large matrix product in that dtype) and reports GB/s, GFLOP/s and
//   the share of these peaks. Small shapes stay in the caches between calls and can exceed 100 % of the bandwidth; --cold prevents that.
//
//   template <class T>
//   void bench_gelu(BenchRun& run) {
//       const size_t count = run["N"] * run["C"];
//       simt::DeviceBuffer<T> out(count), inp = random_buffer<T>(count);
//       run.measure({.bytes = 2 * count * sizeof(T)}, [&](stream_t stream) { gelu_forward(out.data(), inp.data(), count, stream); });
//   }
//   int main(int argc, char** argv) {
//       Bench bench("GELU, forward and backward", {{"N", {256}, "rows"}, {"C", {768, 3072}, "channels"}});
//       bench.add("gelu_forward", BENCH_TYPES(bench_gelu));
//       return bench.main(argc, argv);
//   }
//
//   bench_gelu --N 64 --C 768,1600 --dtype bf16 --json out.json --benchmark_filter=forward
#pragma once
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cost.h"
#include "gemm.h"
#include "peaks.h"
#include "simt/simt.cuh"
#include "simt/timing.h"

struct BenchDimension {
    std::string name;
    std::vector<size_t> values;  // the defaults; every combination of all dimensions' values is a benchmark
    std::string help;
};

// What the machine can do.
struct BenchPeaks {
    double bytes_per_second = 0;
    std::map<std::string, double> flops_per_second;  // by dtype
};

// Normally distributed numbers on the device.
template <class T>
simt::DeviceBuffer<T> random_buffer(size_t count, float scale = 1.0f, unsigned seed = 1) {
    std::minstd_rand generator(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<T> values(count);
    std::vector<T> period(std::min<size_t>(count, 1 << 16));  // drawing 50 million numbers would take longer than the benchmark
    for (T& value : period) value = T(normal(generator));
    for (size_t i = 0; i < count; i++) values[i] = period[i % period.size()];
    simt::DeviceBuffer<T> buffer(count);
    simt::copy_to_device(buffer.data(), values.data(), buffer.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    return buffer;
}

// One benchmark with its shape and dtype.
class BenchRun {
public:
    BenchRun(benchmark::State& state, std::map<std::string, size_t> shape, std::string dtype, const BenchPeaks& peaks, bool cold)
        : state_(state), shape_(std::move(shape)), dtype_(std::move(dtype)), peaks_(peaks), cold_(cold) {}

    size_t operator[](const std::string& dimension) const { return shape_.at(dimension); }
    const std::string& dtype() const { return dtype_; }  // fp32, tf32 or bf16
    bool tf32() const { return dtype_ == "tf32"; }

    // Times body(stream), which starts the work of one call. Called once.
    template <class Body>
    void measure(Cost cost, Body body) {
        body(stream_t{});  // warm up: primitives are built, pages are touched
        const double once_ms = simt::milliseconds(1, body);
        // Events cannot resolve a few microseconds: short calls are timed many at once.
        const size_t repeats = cold_ || once_ms > 1 ? 1 : static_cast<size_t>(std::min(1000.0, 1 + 1 / (once_ms + 1e-6)));
        simt::DeviceBuffer<char> flush(cold_ ? size_t{512} << 20 : 0);
        double seconds = 0;
        for (auto iteration : state_) {
            (void)iteration;
            if (cold_) simt::fill_zero(flush.data(), flush.bytes(), nullptr);
            const double call = simt::milliseconds(repeats, body) * 1e-3 / static_cast<double>(repeats);
            state_.SetIterationTime(call);
            seconds += call;
        }
        const double calls_per_second = static_cast<double>(state_.iterations()) / seconds;
        const auto report = [&](const char* name, const char* share, size_t amount, double peak) {
            if (amount == 0) return;
            const double rate = static_cast<double>(amount) * calls_per_second;
            state_.counters[name] = rate * 1e-9;
            if (peak > 0) state_.counters[share] = rate / peak * 100;
        };
        report("GB/s", "%bandwidth", cost.bytes, peaks_.bytes_per_second);
        const auto peak = peaks_.flops_per_second.find(dtype_);
        report("GFLOP/s", "%compute", cost.flops, peak == peaks_.flops_per_second.end() ? 0 : peak->second);
    }

private:
    benchmark::State& state_;
    std::map<std::string, size_t> shape_;
    std::string dtype_;
    const BenchPeaks& peaks_;
    bool cold_;
};

// The body of a benchmark for a dtype: a function template instantiated for float (fp32, tf32) and bfloat16.
struct BenchBodies {
    std::function<void(BenchRun&)> of_float, of_bfloat16;
};
#define BENCH_TYPES(function) \
    BenchBodies { function<float>, function<bfloat16> }

class Bench {
public:
    Bench(std::string description, std::vector<BenchDimension> dimensions)
        : description_(std::move(description)), dimensions_(std::move(dimensions)) {}

    void add(std::string name, BenchBodies bodies) { entries_.push_back({std::move(name), std::move(bodies)}); }

    // Returns the program's exit code.
    int main(int argc, char** argv) {
        try {
            return run(argc, argv);
        } catch (const Error& error) {
            std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
            return error.exit_code;
        }
    }

private:
    struct Entry {
        std::string name;
        BenchBodies bodies;
    };

    int run(int argc, char** argv) {
        CLI::App app(description_);
        app.footer("Options of Google Benchmark (--benchmark_filter=REGEX, --benchmark_min_time=SECONDS, ...) are passed on to it.");
        app.allow_extras();
        for (BenchDimension& dimension : dimensions_) {
            app.add_option("--" + dimension.name, dimension.values, dimension.help)
                ->delimiter(',')
                ->check(CLI::Range(1, std::numeric_limits<int>::max()))
                ->capture_default_str();
        }
        std::vector<std::string> dtypes =
            simt::is_gpu() ? std::vector<std::string>{"fp32", "tf32", "bf16"} : std::vector<std::string>{"fp32", "bf16"};
        app.add_option("--dtype", dtypes, "fp32, tf32 or bf16")
            ->delimiter(',')
            ->check(CLI::IsMember({"fp32", "tf32", "bf16"}))
            ->capture_default_str();
        std::string json;
        app.add_option("--json", json, "write the results to this file");
        app.add_flag("--cold", cold_, "empty the caches before every call");
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError& error) { return app.exit(error) == 0 ? 0 : 2; }

        std::vector<std::string> arguments = app.remaining();
        for (const std::string& argument : arguments) CHECK(argument.starts_with("--benchmark_"), "unknown argument {}; see --help", argument);
        if (!json.empty()) arguments.insert(arguments.end(), {"--benchmark_out=" + json, "--benchmark_out_format=json"});
        std::vector<char*> pointers{argv[0]};
        for (std::string& argument : arguments) pointers.push_back(argument.data());
        int count = static_cast<int>(pointers.size());
        benchmark::Initialize(&count, pointers.data());
        if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;

        simt::select_device();
        measure_peaks(dtypes);
        for (const std::string& dtype : dtypes) register_shapes(dtype, 0, {});
        benchmark::RunSpecifiedBenchmarks();
        return 0;
    }

    void measure_peaks(const std::vector<std::string>& dtypes) {
        benchmark::AddCustomContext("device", simt::device_info().name);
        peaks_.bytes_per_second = measure_copy_bandwidth();
        benchmark::AddCustomContext("peak copy", fmt::format("{:.1f} GB/s", peaks_.bytes_per_second * 1e-9));
        for (const std::string& dtype : dtypes) {
            double& peak = peaks_.flops_per_second[dtype];
            peak = measure_matmul_rate(::dtypes.at(dtype));
            benchmark::AddCustomContext("peak matmul " + dtype, fmt::format("{:.1f} GFLOP/s", peak * 1e-9));
        }
    }

    // Every combination of the dimensions from `dimension` on.
    void register_shapes(const std::string& dtype, size_t dimension, std::map<std::string, size_t> shape) {
        if (dimension < dimensions_.size()) {
            for (const size_t value : dimensions_[dimension].values) {
                shape[dimensions_[dimension].name] = value;
                register_shapes(dtype, dimension + 1, shape);
            }
            return;
        }
        for (const Entry& entry : entries_) {
            std::string name = entry.name + "/" + dtype;
            for (const BenchDimension& d : dimensions_) name += "/" + d.name + ":" + std::to_string(shape.at(d.name));
            const auto& body = dtype == "bf16" ? entry.bodies.of_bfloat16 : entry.bodies.of_float;
            const auto start = [this, body, shape, dtype](benchmark::State& state) {
                BenchRun run(state, shape, dtype, peaks_, cold_);
                try {
                    body(run);
                } catch (const Error& error) { state.SkipWithError(error.what()); }
            };
            benchmark::RegisterBenchmark(name.c_str(), start)->UseManualTime()->Unit(benchmark::kMicrosecond);
        }
    }

    std::string description_;
    std::vector<BenchDimension> dimensions_;
    std::vector<Entry> entries_;
    BenchPeaks peaks_;
    bool cold_ = false;
};
