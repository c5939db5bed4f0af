// bench_llama.cu: the operations that only a Llama's block has: RMSNorm, RoPE and SwiGLU, forward and
// backward.
//   H, NH and NKV follow from C as in SmolLM2-135M: H is 8/3 C, heads have 64 channels, and three share
//   keys.
#include "bench.h"
#include "kernels/attention/rope.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/swiglu.cuh"

namespace {

template <class T>
struct Norm {
    size_t N, C;
    simt::DeviceBuffer<T> out{N * C}, residual = random_buffer<T>(N * C, 1.0f, 3),
                                      inp = random_buffer<T>(N * C),
                                      branch = random_buffer<T>(N * C, 1.0f, 2), weight = random_buffer<T>(C);
    simt::DeviceBuffer<float> rstd = random_buffer<float>(N, 0.1f), dweight = random_buffer<float>(C),
                              scratch{layernorm_backward_scratch(N, static_cast<int>(C), 1)};
    explicit Norm(const BenchRun& run) : N(run["N"]), C(run["C"]) {}

    void forward(const T* added, stream_t stream) {
        const T* const no_bias = nullptr;
        layernorm_forward(out.data(), residual.data(), nullptr, rstd.data(), inp.data(), added, weight.data(),
                          no_bias, 1e-5f, N, static_cast<int>(C), stream);
    }
};

template <class T>
void bench_rmsnorm(BenchRun& run) {
    Norm<T> t(run);
    run.measure(cost::layernorm<T>(t.N, t.C), [&](stream_t stream) { t.forward(nullptr, stream); });
}

template <class T>
void bench_residual_rmsnorm(BenchRun& run) {
    Norm<T> t(run);
    run.measure(cost::residual_layernorm<T>(t.N, t.C),
                [&](stream_t stream) { t.forward(t.branch.data(), stream); });
}

template <class T>
void bench_rmsnorm_backward(BenchRun& run) {
    Norm<T> t(run);
    run.measure(cost::layernorm_backward<T>(t.N, t.C, true), [&](stream_t stream) {
        layernorm_backward(t.out.data(), t.dweight.data(), nullptr, nullptr, t.scratch.data(),
                           t.residual.data(), t.branch.data(), t.inp.data(), t.weight.data(), nullptr,
                           t.rstd.data(), t.N, static_cast<int>(t.C), stream);
    });
}

template <class T>
void bench_rope(BenchRun& run) {
    const int NH = static_cast<int>(run["C"] / 64), NKV = NH % 3 == 0 ? NH / 3 : NH;
    const AttentionShape shape{1, static_cast<int>(run["N"]), NH, 64, NKV};
    const std::vector<float> host = rope_table(shape.T, shape.HS, 10000);
    simt::DeviceBuffer<float> table(host.size());
    simt::copy_to_device(table.data(), host.data(), table.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    auto qkv = random_buffer<T>(run["N"] * static_cast<size_t>((NH + 2 * NKV) * 64));
    run.measure(cost::rope<T>(shape),
                [&](stream_t stream) { rope_forward(qkv.data(), table.data(), nullptr, shape, stream); });
}

template <class T>
void bench_swiglu(BenchRun& run) {
    const size_t N = run["N"], H = run["C"] * 8 / 3;
    simt::DeviceBuffer<T> out(N * H), gate_up = random_buffer<T>(2 * N * H);
    run.measure(cost::swiglu<T>(N * H), [&](stream_t stream) {
        swiglu_forward(out.data(), gate_up.data(), N, static_cast<int>(H), stream);
    });
}

template <class T>
void bench_swiglu_backward(BenchRun& run) {
    const size_t N = run["N"], H = run["C"] * 8 / 3;
    simt::DeviceBuffer<T> dout = random_buffer<T>(N * H), gate_up = random_buffer<T>(2 * N * H, 1.0f, 2),
                          dgate_up(2 * N * H);
    run.measure(cost::swiglu_backward<T>(N * H), [&](stream_t stream) {
        swiglu_backward(dgate_up.data(), dout.data(), gate_up.data(), N, static_cast<int>(H), stream);
    });
}

}  // namespace

int main(int argc, char** argv) {
    Bench bench("RMSNorm, RoPE and SwiGLU, forward and backward",
                {{"N", {256, 768}, "rows"}, {"C", {192, 576}, "channels"}}, [](const BenchModel& m) {
                    return BenchShapes{{{"N", m.N()}, {"C", m.C()}}};
                });
    bench.add("rmsnorm_forward", BENCH_TYPES(bench_rmsnorm));
    bench.add("residual_rmsnorm_forward", BENCH_TYPES(bench_residual_rmsnorm));
    bench.add("rmsnorm_backward", BENCH_TYPES(bench_rmsnorm_backward));
    bench.add("rope", BENCH_TYPES(bench_rope));
    bench.add("swiglu_forward", BENCH_TYPES(bench_swiglu));
    bench.add("swiglu_backward", BENCH_TYPES(bench_swiglu_backward));
    return bench.main(argc, argv);
}
