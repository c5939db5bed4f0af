// bench.h: the frame of the benchmarks on top of Google Benchmark; each operation has one binary.
//   A benchmark declares the bytes it must move and the flops it must compute. The frame measures the
//   machine's peaks in the same run (a copy of a buffer larger than its caches, and its best large matrix
//   product in that dtype) and reports GB/s, GFLOP/s and the share of these peaks. Small shapes stay in the
//   caches between calls and can exceed 100 % of the bandwidth; --cold prevents that.
//
//   bench_gelu.cu is the shortest example: functions that call BenchRun::measure, and a Bench to which they
//   are added by name.
//   bench_gelu --N 64 --C 768,1600 --dtype bf16 --json out.json --benchmark_filter=forward
//   bench_gelu --preset 124M --cold          # the shapes of a training step of GPT-2 124M
#pragma once
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/random.cuh"
#include "kernels/simt/simt.cuh"
#include "kernels/simt/timing.h"
#include "trainer/engine/cost.h"
#include "trainer/models/families.h"
#include "trainer/run/peaks.h"

struct BenchDimension {
    std::string name;
    std::vector<size_t> values;  // defaults; each combination of all dimensions' values is a benchmark
    std::string help;
};

// One shape: a value for each dimension.
using BenchShape = std::map<std::string, size_t>;
using BenchShapes = std::vector<BenchShape>;

// The model of --preset and its micro-step: on a GPU that of llm.c's recipes, on a CPU with as many tokens as
// in docs/performance.md.
struct BenchModel {
    ModelConfig config;
    size_t B, T;

    size_t N() const { return B * T; }
    size_t C() const { return static_cast<size_t>(config.C); }
    size_t NH() const { return static_cast<size_t>(config.NH); }
    size_t HS() const { return static_cast<size_t>(config.HS()); }
    size_t V() const { return static_cast<size_t>(config.V); }
    size_t Vp() const { return static_cast<size_t>(config.Vp()); }
    size_t parameters() const { return table_of(config).elements(); }  // of the flat buffer
};

inline BenchModel bench_model(const std::string& preset) {
    const bool small = preset == "124M";
    return {named_model(small ? "gpt2" : "gpt2-xl"), simt::is_gpu() ? size_t{small ? 64u : 16u} : 4,
            simt::is_gpu() ? size_t{1024} : 64};
}

// Measured peaks of the machine.
struct BenchPeaks {
    double bytes_per_second = 0;
    std::map<std::string, double> flops_per_second;  // by dtype
};

// Normally distributed numbers on the device. They are drawn and copied there, because the largest shapes
// need 3.3e9 elements.
template <class T>
simt::DeviceBuffer<T> random_buffer(size_t count, float scale = 1.0f, unsigned seed = 1) {
    simt::DeviceBuffer<T> buffer(count);
    // The numbers repeat: drawing 50 million on a CPU would take longer than the benchmark.
    const size_t period = std::min<size_t>(count, 1 << 16);
    if (period == 0) return buffer;
    const simt::DeviceBuffer<float> drawn(period);
    normal_init(drawn.data(), period, 0.0f, scale, seed, 0, nullptr);
    convert(buffer.data(), drawn.data(), period, nullptr);
    for (size_t filled = period; filled < count;) {
        const size_t more = std::min(filled, count - filled);
        simt::copy_on_device(buffer.data() + filled, buffer.data(), more * sizeof(T), nullptr);
        filled += more;
    }
    simt::stream_synchronize(nullptr);
    return buffer;
}

// One benchmark with its shape and dtype.
class BenchRun {
public:
    BenchRun(benchmark::State& state, BenchShape shape, std::string dtype, const BenchPeaks& peaks,
             const ModelConfig& model, bool cold)
        : state_(state),
          shape_(std::move(shape)),
          dtype_(std::move(dtype)),
          peaks_(peaks),
          model_(model),
          cold_(cold) {}

    size_t operator[](const std::string& dimension) const { return shape_.at(dimension); }
    const std::string& dtype() const { return dtype_; }  // fp32, tf32 or bf16
    bool tf32() const { return dtype_ == "tf32"; }
    const ModelConfig& model() const { return model_; }  // that of --preset; default: GPT-2 124M

    // Times body(stream), which starts the work of one call. Called once.
    template <class Body>
    void measure(Cost cost, Body body) {
        body(stream_t{});  // warm up: primitives are built, pages are touched
        const double once_ms = simt::milliseconds(1, body);
        // Events cannot resolve a few microseconds, so many short calls are timed together.
        const size_t repeats =
            cold_ || once_ms > 1 ? 1 : static_cast<size_t>(std::min(1000.0, 1 + 1 / (once_ms + 1e-6)));
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
    BenchShape shape_;
    std::string dtype_;
    const BenchPeaks& peaks_;
    const ModelConfig& model_;
    bool cold_;
};

// The body of a benchmark by dtype: a function template instantiated for float (fp32, tf32) and bfloat16.
// An empty function means that the operation does not support that type.
struct BenchBodies {
    std::function<void(BenchRun&)> of_float, of_bfloat16;
};
#define BENCH_TYPES(function) \
    BenchBodies { function<float>, function<bfloat16> }

class Bench {
public:
    // preset: the shapes of these operations in a given model.
    Bench(std::string description, std::vector<BenchDimension> dimensions,
          std::function<BenchShapes(const BenchModel&)> preset)
        : description_(std::move(description)),
          dimensions_(std::move(dimensions)),
          preset_(std::move(preset)) {}

    void add(std::string name, BenchBodies bodies) {
        entries_.push_back({std::move(name), std::move(bodies)});
    }

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
        const std::function<void(BenchRun&)>& body(const std::string& dtype) const {
            return dtype == "bf16" ? bodies.of_bfloat16 : bodies.of_float;
        }
    };

    int run(int argc, char** argv) {
        CLI::App app(description_);
        app.footer(
            "Options of Google Benchmark (--benchmark_filter=REGEX, --benchmark_min_time=SECONDS, ...) are "
            "passed on to it.");
        app.allow_extras();
        for (BenchDimension& dimension : dimensions_) {
            app.add_option("--" + dimension.name, dimension.values, dimension.help)
                ->delimiter(',')
                ->check(CLI::Range(1, std::numeric_limits<int>::max()))
                ->capture_default_str();
        }
        std::string preset;
        app.add_option("--preset", preset,
                       "the shapes of GPT-2 124M or 1558M; a dimension given beside it replaces the model's")
            ->check(CLI::IsMember({"124M", "1558M"}));
        std::vector<std::string> dtypes = simt::is_gpu() ? std::vector<std::string>{"fp32", "tf32", "bf16"}
                                                         : std::vector<std::string>{"fp32", "bf16"};
        app.add_option("--dtype", dtypes, "fp32, tf32 or bf16")
            ->delimiter(',')
            ->check(CLI::IsMember({"fp32", "tf32", "bf16"}))
            ->capture_default_str();
        std::string json;
        app.add_option("--json", json, "write the results to this file");
        app.add_flag("--cold", cold_,
                     fmt::format("empty the caches before every call; {} calls", cold_calls));
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError& error) { return app.exit(error) == 0 ? 0 : 2; }

        std::vector<std::string> arguments = app.remaining();
        for (const std::string& argument : arguments)
            CHECK(argument.starts_with("--benchmark_"), "unknown argument {}; see --help", argument);
        if (!json.empty())
            arguments.insert(arguments.end(), {"--benchmark_out=" + json, "--benchmark_out_format=json"});
        std::vector<char*> pointers{argv[0]};
        for (std::string& argument : arguments) pointers.push_back(argument.data());
        int count = static_cast<int>(pointers.size());
        benchmark::Initialize(&count, pointers.data());
        if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;

        simt::select_device();
        measure_peaks(dtypes);
        if (!preset.empty()) model_ = bench_model(preset);
        BenchShapes shapes = preset.empty() ? BenchShapes{{}} : preset_(model_);
        for (const BenchDimension& dimension : dimensions_) {
            if (preset.empty() || app.count("--" + dimension.name) > 0)
                shapes = with_values(shapes, dimension);
        }
        for (const std::string& dtype : dtypes) {
            for (const Entry& entry : entries_) {
                if (!entry.body(dtype))
                    std::fprintf(stderr, "%s is not computed in %s: left out\n", entry.name.c_str(),
                                 dtype.c_str());
            }
            for (const BenchShape& shape : shapes) add_benchmarks(dtype, shape);
        }
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

    // Combines every shape with every value of the dimension; no shape occurs twice.
    static BenchShapes with_values(const BenchShapes& shapes, const BenchDimension& dimension) {
        BenchShapes all;
        for (BenchShape shape : shapes) {
            for (const size_t value : dimension.values) {
                shape[dimension.name] = value;
                if (std::find(all.begin(), all.end(), shape) == all.end()) all.push_back(shape);
            }
        }
        return all;
    }

    void add_benchmarks(const std::string& dtype, const BenchShape& shape) {
        for (const Entry& entry : entries_) {
            const auto& body = entry.body(dtype);
            if (!body) continue;
            std::string name = entry.name + "/" + dtype;
            for (const BenchDimension& d : dimensions_)
                name += "/" + d.name + ":" + std::to_string(shape.at(d.name));
            const auto start = [this, body, shape, dtype](benchmark::State& state) {
                BenchRun run(state, shape, dtype, peaks_, model_.config, cold_);
                try {
                    body(run);
                } catch (const Error& error) { state.SkipWithError(error.what()); }
            };
            auto* registered = benchmark::RegisterBenchmark(name.c_str(), start)
                                   ->UseManualTime()
                                   ->Unit(benchmark::kMicrosecond);
            // A fixed number of calls: Google Benchmark would repeat a short call a hundred thousand times,
            // and each call empties the caches.
            if (cold_) registered->Iterations(cold_calls);
        }
    }

    static constexpr int cold_calls = 30;
    std::string description_;
    std::vector<BenchDimension> dimensions_;
    std::function<BenchShapes(const BenchModel&)> preset_;
    std::vector<Entry> entries_;
    BenchPeaks peaks_;
    BenchModel model_ = bench_model("124M");
    bool cold_ = false;
};
