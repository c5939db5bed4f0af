// bench_gelu.cu: GELU, forward and backward, over the MLP's hidden layer.
#include "bench.h"
#include "gelu.cuh"

template <class T>
void bench_forward(BenchRun& run) {
    const size_t count = run["N"] * run["C"];
    simt::DeviceBuffer<T> out(count), inp = random_buffer<T>(count);
    run.measure({.bytes = 2 * count * sizeof(T)}, [&](stream_t stream) { gelu_forward(out.data(), inp.data(), count, stream); });
}

template <class T>
void bench_backward(BenchRun& run) {
    const size_t count = run["N"] * run["C"];
    simt::DeviceBuffer<T> dinp(count), dout = random_buffer<T>(count), inp = random_buffer<T>(count, 1.0f, 2);
    run.measure({.bytes = 3 * count * sizeof(T)}, [&](stream_t stream) { gelu_backward(dinp.data(), dout.data(), inp.data(), count, stream); });
}

int main(int argc, char** argv) {
    Bench bench("GELU, forward and backward", {{"N", {256, 768}, "rows"}, {"C", {512, 3072}, "channels of the hidden layer"}});
    bench.add("gelu_forward", BENCH_TYPES(bench_forward));
    bench.add("gelu_backward", BENCH_TYPES(bench_backward));
    return bench.main(argc, argv);
}
