// bench.cu: the frame of the benchmarks (bench.h)
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>

#include "bench.h"
#include "kernels/random.cuh"
#include "kernels/simt/timing.h"
#include "trainer/run/peaks.h"

namespace {

constexpr int cold_calls = 30;

BenchModel bench_model(const std::string& preset) {
    const bool small = preset == "124M";
    return {named_model(small ? "gpt2" : "gpt2-xl"), simt::is_gpu() ? size_t{small ? 64u : 16u} : 4,
            simt::is_gpu() ? size_t{1024} : 64};
}

// Combines every shape with every value of the dimension; no shape occurs twice.
BenchShapes with_values(const BenchShapes& shapes, const BenchDimension& dimension) {
    BenchShapes all;
    for (BenchShape shape : shapes) {
        for (const size_t value : dimension.values) {
            shape[dimension.name] = value;
            if (std::find(all.begin(), all.end(), shape) == all.end()) all.push_back(shape);
        }
    }
    return all;
}

}  // namespace

// The numbers are drawn and copied on the device, because the largest shapes need 3.3e9 elements.
template <class T>
simt::DeviceBuffer<T> random_buffer(size_t count, float scale, unsigned seed) {
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
template simt::DeviceBuffer<float> random_buffer<float>(size_t, float, unsigned);
template simt::DeviceBuffer<bfloat16> random_buffer<bfloat16>(size_t, float, unsigned);

void BenchRun::measure(Cost cost, const std::function<void(stream_t)>& body) {
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

int Bench::main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
        return error.exit_code;
    }
}

int Bench::run(int argc, char** argv) {
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
    app.add_flag("--cold", cold_, fmt::format("empty the caches before every call; {} calls", cold_calls));
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
    model_ = bench_model(preset.empty() ? "124M" : preset);
    BenchShapes shapes = preset.empty() ? BenchShapes{{}} : preset_(model_);
    for (const BenchDimension& dimension : dimensions_) {
        // A preset need not give every dimension.
        if (!shapes[0].contains(dimension.name) || app.count("--" + dimension.name) > 0)
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

void Bench::measure_peaks(const std::vector<std::string>& dtypes) {
    benchmark::AddCustomContext("device", simt::device_info().name);
    peaks_.bytes_per_second = measure_copy_bandwidth();
    benchmark::AddCustomContext("peak copy", fmt::format("{:.1f} GB/s", peaks_.bytes_per_second * 1e-9));
    for (const std::string& dtype : dtypes) {
        double& peak = peaks_.flops_per_second[dtype];
        peak = measure_matmul_rate(::dtypes.at(dtype));
        benchmark::AddCustomContext("peak matmul " + dtype, fmt::format("{:.1f} GFLOP/s", peak * 1e-9));
    }
}

void Bench::add_benchmarks(const std::string& dtype, const BenchShape& shape) {
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
        auto* registered =
            benchmark::RegisterBenchmark(name.c_str(), start)->UseManualTime()->Unit(benchmark::kMicrosecond);
        // A fixed number of calls: Google Benchmark would repeat a short call a hundred thousand times,
        // and each call empties the caches.
        if (cold_) registered->Iterations(cold_calls);
    }
}
