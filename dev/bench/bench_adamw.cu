// bench_adamw.cu: a step's work on every parameter: the norm of the gradients, then an optimizer's update.
#include "bench.h"
#include "kernels/adamw.cuh"
#include "kernels/global_norm.cuh"
#include "kernels/rmsprop.cuh"
#include "kernels/sgd.cuh"

// Gradients are fp32 for parameters of any type.
void bench_norm(BenchRun& run) {
    const size_t n = run["n"];
    simt::DeviceBuffer<float> grads = random_buffer<float>(n), out(1), scratch(global_norm_scratch(n));
    run.measure(cost::pass<float>(1, n), [&](stream_t stream) {
        global_norm_squared(out.data(), scratch.data(), grads.data(), n, stream);
    });
}

// In fp32 the parameters are the masters; in bf16 a rounded copy is written, too. buffers: floats of state
// per parameter.
//   update(params, master, first, second, grads, n, state, stream)
template <class T, class Update>
void bench_update(BenchRun& run, size_t buffers, Update update) {
    const size_t n = run["n"];
    constexpr bool copies = !std::is_same_v<T, float>;
    simt::DeviceBuffer<float> master = random_buffer<float>(n), first = random_buffer<float>(n, 0.01f),
                              second(n), grads = random_buffer<float>(n), norm(1),
                              scratch(global_norm_scratch(n));
    simt::DeviceBuffer<T> params(copies ? n : 0);
    simt::DeviceBuffer<OptimizerState> state(1);
    simt::fill_zero(second.data(), second.bytes(), nullptr);
    OptimizerState first_step{};
    first_step.lr = 1e-4;
    simt::copy_to_device(state.data(), &first_step, sizeof(first_step), nullptr);
    T* const written = [&] {
        if constexpr (copies) return params.data();
        else return master.data();
    }();
    global_norm_squared(norm.data(), scratch.data(), grads.data(), n, nullptr);
    run.measure(cost::update(n, buffers, copies ? sizeof(T) : 0), [&](stream_t stream) {
        optimizer_prepare(state.data(), norm.data(), 1.0f, 0.9, 0.95, stream);
        update(written, master.data(), first.data(), second.data(), grads.data(), n, state.data(), stream);
    });
}
template <class T>
void bench_adamw(BenchRun& run) {
    bench_update<T>(run, 2,
                    [](T* params, float* master, float* m, float* v, const float* grads, size_t n,
                       const OptimizerState* state, stream_t s) {
                        adamw_update(params, master, m, v, grads, n,
                                     {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}, state,
                                     s);
                    });
}
template <class T>
void bench_sgd(BenchRun& run) {
    bench_update<T>(run, 1,
                    [](T* params, float* master, float* b, float*, const float* grads, size_t n,
                       const OptimizerState* state, stream_t s) {
                        sgd_update(params, master, b, grads, n,
                                   {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}, state, s);
                    });
}
template <class T>
void bench_rmsprop(BenchRun& run) {
    bench_update<T>(run, 2,
                    [](T* params, float* master, float* b, float* v, const float* grads, size_t n,
                       const OptimizerState* state, stream_t s) {
                        rmsprop_update(params, master, v, b, grads, n,
                                       {.alpha = 0.99, .eps = 1e-8, .momentum = 0.9, .weight_decay = 0.1},
                                       state, s);
                    });
}

int main(int argc, char** argv) {
    Bench bench("Gradient norm and optimizers", {{"n", {800000, 124475904}, "parameters"}},
                [](const BenchModel& m) {
                    return BenchShapes{{{"n", m.parameters()}}};
                });
    bench.add("global_norm", BenchBodies{bench_norm, bench_norm});
    bench.add("adamw", BENCH_TYPES(bench_adamw));
    bench.add("sgd_momentum", BENCH_TYPES(bench_sgd));
    bench.add("rmsprop_momentum", BENCH_TYPES(bench_rmsprop));
    return bench.main(argc, argv);
}
