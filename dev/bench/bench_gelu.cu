// bench_gelu.cu: GELU, forward and backward, over the MLP's hidden layer.
#include "bench.h"
#include "kernels/gelu.cuh"

template <class T>
void bench_forward(BenchRun& run) {
    const size_t count = run["N"] * run["C"];
    simt::DeviceBuffer<T> out(count), inp = random_buffer<T>(count);
    run.measure(cost::activation<T>(count),
                [&](stream_t stream) { gelu_forward(out.data(), inp.data(), count, stream); });
}

template <class T>
void bench_backward(BenchRun& run) {
    const size_t count = run["N"] * run["C"];
    simt::DeviceBuffer<T> dinp(count), dout = random_buffer<T>(count), inp = random_buffer<T>(count, 1.0f, 2);
    run.measure(cost::activation_backward<T>(count),
                [&](stream_t stream) { gelu_backward(dinp.data(), dout.data(), inp.data(), count, stream); });
}

int main(int argc, char** argv) {
    Bench bench("GELU, forward and backward",
                {{"N", {256, 768}, "rows"}, {"C", {512, 3072}, "channels of the hidden layer"}},
                [](const BenchModel& m) {
                    return BenchShapes{{{"N", m.N()}, {"C", 4 * m.C()}}};
                });
    bench.add("gelu_forward", BENCH_TYPES(bench_forward));
    bench.add("gelu_backward", BENCH_TYPES(bench_backward));
    return bench.main(argc, argv);
}
