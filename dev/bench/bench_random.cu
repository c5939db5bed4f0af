// bench_random.cu: initialisation by Philox, and the conversion to the parameters' type.
#include "bench.h"
#include "kernels/random.cuh"

void bench_normal(BenchRun& run) {
    simt::DeviceBuffer<float> out(run["n"]);
    run.measure(cost::pass<float>(1, out.size()),
                [&](stream_t stream) { normal_init(out.data(), out.size(), 0.0f, 0.02f, 1, 1, stream); });
}

template <class T>
void bench_convert(BenchRun& run) {
    const size_t n = run["n"];
    simt::DeviceBuffer<float> inp = random_buffer<float>(n);
    simt::DeviceBuffer<T> out(n);
    run.measure({.bytes = n * (sizeof(float) + sizeof(T))},
                [&](stream_t stream) { convert(out.data(), inp.data(), n, stream); });
}

int main(int argc, char** argv) {
    Bench bench("Initialisation", {{"n", {1000000}, "elements"}}, [](const BenchModel& m) {
        return BenchShapes{{{"n", m.parameters()}}};
    });
    bench.add("normal_init", BenchBodies{bench_normal, bench_normal});
    bench.add("convert", BENCH_TYPES(bench_convert));
    return bench.main(argc, argv);
}
