// bench_adamw.cu: what a step does to every parameter: the norm of the gradients, then AdamW.
#include "adamw.cuh"
#include "bench.h"
#include "global_norm.cuh"

// fp32 gradients, whatever the type of the parameters.
void bench_norm(BenchRun& run) {
    const size_t n = run["n"];
    simt::DeviceBuffer<float> grads = random_buffer<float>(n), out(1), scratch(global_norm_scratch(n));
    run.measure({.bytes = n * sizeof(float)}, [&](stream_t stream) { global_norm_squared(out.data(), scratch.data(), grads.data(), n, stream); });
}

// fp32: the parameters are the masters. bf16: a rounded copy is written besides.
template <class T>
void bench_update(BenchRun& run) {
    const size_t n = run["n"];
    constexpr bool copies = !std::is_same_v<T, float>;
    simt::DeviceBuffer<float> master = random_buffer<float>(n), m = random_buffer<float>(n, 0.01f), v(n), grads = random_buffer<float>(n), norm(1),
                              scratch(global_norm_scratch(n));
    simt::DeviceBuffer<T> params(copies ? n : 0);
    simt::DeviceBuffer<OptimizerState> state(1);
    simt::fill_zero(v.data(), v.bytes(), nullptr);
    simt::fill_zero(state.data(), state.bytes(), nullptr);
    T* const written = [&] {
        if constexpr (copies) return params.data();
        else return master.data();
    }();
    const AdamWStep step{.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    global_norm_squared(norm.data(), scratch.data(), grads.data(), n, nullptr);
    run.measure({.bytes = n * (7 * sizeof(float) + (copies ? sizeof(T) : 0))}, [&](stream_t stream) {
        optimizer_prepare(state.data(), norm.data(), 1.0f, step.beta1, step.beta2, stream);
        adamw_update(written, master.data(), m.data(), v.data(), grads.data(), n, step, state.data(), stream);
    });
}

int main(int argc, char** argv) {
    Bench bench("Gradient norm and AdamW", {{"n", {800000, 124475904}, "parameters"}});
    bench.add("global_norm", BenchBodies{bench_norm, bench_norm});
    bench.add("adamw", BENCH_TYPES(bench_update));
    return bench.main(argc, argv);
}
