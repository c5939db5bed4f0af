// bench_layernorm.cu: layernorm, alone and fused with the residual sum, forward and backward, beside the
// plain residual sum.
#include "bench.h"
#include "kernels/layernorm.cuh"

template <class T>
struct Tensors {
    size_t N, C;
    // Backward reads the residual that forward writes.
    simt::DeviceBuffer<T> out{N * C},
        residual = random_buffer<T>(N * C, 1.0f, 3), inp = random_buffer<T>(N * C),
        branch = random_buffer<T>(N * C, 1.0f, 2), weight = random_buffer<T>(C), bias = random_buffer<T>(C);
    simt::DeviceBuffer<float> mean = random_buffer<float>(N, 0.1f), rstd = random_buffer<float>(N, 0.1f);
    explicit Tensors(const BenchRun& run) : N(run["N"]), C(run["C"]) {}

    void forward(const T* added, stream_t stream) {
        layernorm_forward(out.data(), residual.data(), mean.data(), rstd.data(), inp.data(), added,
                          weight.data(), bias.data(), 1e-5f, N, static_cast<int>(C), stream);
    }
};

template <class T>
void bench_forward(BenchRun& run) {
    Tensors<T> t(run);
    run.measure(cost::layernorm<T>(t.N, t.C), [&](stream_t stream) { t.forward(nullptr, stream); });
}

template <class T>
void bench_residual_forward(BenchRun& run) {
    Tensors<T> t(run);
    run.measure(cost::residual_layernorm<T>(t.N, t.C),
                [&](stream_t stream) { t.forward(t.branch.data(), stream); });
}

// The result is added to a gradient of the residual stream, as in every layer but the last. Sum also computes
// the sum of the result, from which training takes the bias gradient of a projection. Otherwise that gradient
// would be an epilogue of the product for the weight gradient (bench_matmul: matmul_backward_weight and
// matmul_backward_weight_bias).
template <class T, bool Sum>
void bench_backward(BenchRun& run) {
    Tensors<T> t(run);
    const int C = static_cast<int>(t.C);
    simt::DeviceBuffer<float> dweight = random_buffer<float>(t.C), dbias = random_buffer<float>(t.C),
                              sum = random_buffer<float>(t.C), scratch(layernorm_backward_scratch(t.N, C, 3));
    run.measure(cost::layernorm_backward<T>(t.N, t.C, true), [&](stream_t stream) {
        layernorm_backward(t.out.data(), dweight.data(), dbias.data(), Sum ? sum.data() : nullptr,
                           scratch.data(), t.residual.data(), t.branch.data(), t.inp.data(), t.weight.data(),
                           t.mean.data(), t.rstd.data(), t.N, C, stream);
    });
}

int main(int argc, char** argv) {
    Bench bench("Layernorm and residual sum, forward and backward",
                {{"N", {256, 768}, "rows"}, {"C", {128, 768}, "channels"}}, [](const BenchModel& m) {
                    return BenchShapes{{{"N", m.N()}, {"C", m.C()}}};
                });
    bench.add("layernorm_forward", BENCH_TYPES(bench_forward));
    bench.add("residual_layernorm_forward", BENCH_TYPES(bench_residual_forward));
    bench.add("layernorm_backward",
              BenchBodies{bench_backward<float, false>, bench_backward<bfloat16, false>});
    bench.add("layernorm_backward_sum",
              BenchBodies{bench_backward<float, true>, bench_backward<bfloat16, true>});
    return bench.main(argc, argv);
}
