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

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"
#include "trainer/engine/cost.h"
#include "trainer/models/families.h"

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

// Measured peaks of the machine.
struct BenchPeaks {
    double bytes_per_second = 0;
    std::map<std::string, double> flops_per_second;  // by dtype
};

// Normally distributed numbers on the device, float or bfloat16.
template <class T>
simt::DeviceBuffer<T> random_buffer(size_t count, float scale = 1.0f, unsigned seed = 1);

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
    void measure(Cost cost, const std::function<void(stream_t)>& body);

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
    int main(int argc, char** argv);

private:
    struct Entry {
        std::string name;
        BenchBodies bodies;
        const std::function<void(BenchRun&)>& body(const std::string& dtype) const {
            return dtype == "bf16" ? bodies.of_bfloat16 : bodies.of_float;
        }
    };

    int run(int argc, char** argv);
    void measure_peaks(const std::vector<std::string>& dtypes);
    void add_benchmarks(const std::string& dtype, const BenchShape& shape);

    std::string description_;
    std::vector<BenchDimension> dimensions_;
    std::function<BenchShapes(const BenchModel&)> preset_;
    std::vector<Entry> entries_;
    BenchPeaks peaks_;
    BenchModel model_;
    bool cold_ = false;
};
