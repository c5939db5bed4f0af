// bench_llama.cu: the operations that only Llama, Qwen3 and nanochat have: RMSNorm, RoPE, alone and with the
// norms of heads, without weights and with, SwiGLU and ReLU squared, forward and backward; and the classifier
// of capped logits.
//   H, NH and NKV follow from C as in SmolLM2-135M: H is 8/3 C, heads have 64 channels, and three share
//   keys.
#include "bench.h"
#include "kernels/attention/rope.cuh"
#include "kernels/capped_cross_entropy.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/relu2.cuh"
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

// q and k of N tokens; heads have 64 channels.
template <class T>
struct Heads {
    int NH;
    AttentionShape shape;
    simt::DeviceBuffer<float> table, rstd;
    simt::DeviceBuffer<T> qkv, dqkv;
    explicit Heads(const BenchRun& run)
        : NH(static_cast<int>(run["C"] / 64)),
          shape{1, static_cast<int>(run["N"]), NH, 64, NH % 3 == 0 ? NH / 3 : NH},
          table(run["N"] * 64),
          rstd(random_buffer<float>(run["N"] * static_cast<size_t>(shape.NH + shape.NKV), 0.1f)),
          qkv(random_buffer<T>(run["N"] * static_cast<size_t>(shape.NH + 2 * shape.NKV) * 64)),
          dqkv(random_buffer<T>(run["N"] * static_cast<size_t>(shape.NH + 2 * shape.NKV) * 64)) {
        const std::vector<float> host = rope_table(shape.T, shape.HS, 10000);
        simt::copy_to_device(table.data(), host.data(), table.bytes(), nullptr);
        simt::stream_synchronize(nullptr);
    }
};

template <class T, bool Norm>
void bench_rope(BenchRun& run) {
    Heads<T> h(run);
    run.measure(cost::rope<T>(h.shape), [&](stream_t stream) {
        rope(h.qkv.data(), {1e-6f, Norm ? h.rstd.data() : nullptr}, {h.table.data()}, h.shape, stream);
    });
}

template <class T>
void bench_rope_norm_backward(BenchRun& run) {
    Heads<T> h(run);
    run.measure(cost::rope_backward<T>(h.shape, true), [&](stream_t stream) {
        rope(h.dqkv.data(), {.eps = 1e-6f, .rstd = h.rstd.data(), .y = h.qkv.data()}, {h.table.data(), -1},
             h.shape, stream);
    });
}

// With weights, as Qwen3's.
template <class T>
struct WeightedHeads : Heads<T> {
    simt::DeviceBuffer<T> q_weight = random_buffer<T>(64), k_weight = random_buffer<T>(64, 1.0f, 2), x;
    simt::DeviceBuffer<float> dweights = random_buffer<float>(2 * 64), scratch;
    HeadNorms<T> norms;
    explicit WeightedHeads(const BenchRun& run)
        : Heads<T>(run),
          x(random_buffer<T>(this->rstd.size() * 64)),
          scratch(weighted_rope_sums(run["N"]) * 2 * 64),
          norms{1e-6f, this->rstd.data(), q_weight.data(), k_weight.data(), nullptr, x.data()} {}
};

template <class T>
void bench_weighted_rope(BenchRun& run) {
    WeightedHeads<T> h(run);
    run.measure(cost::rope<T>(h.shape, true),
                [&](stream_t stream) { rope(h.qkv.data(), h.norms, {h.table.data()}, h.shape, stream); });
}

template <class T>
void bench_weighted_rope_backward(BenchRun& run) {
    WeightedHeads<T> h(run);
    run.measure(cost::rope_backward<T>(h.shape, true), [&](stream_t stream) {
        weighted_rope_backward(h.dqkv.data(), h.dweights.data(), h.dweights.data() + 64, h.scratch.data(),
                               h.norms, {h.table.data(), -1}, h.shape, stream);
    });
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

template <class T>
void bench_relu2(BenchRun& run) {
    const size_t n = run["N"] * run["C"] * 4;
    auto x = random_buffer<T>(n);
    run.measure(cost::activation<T>(n), [&](stream_t stream) { relu2_forward(x.data(), n, stream); });
}

template <class T>
void bench_relu2_backward(BenchRun& run) {
    const size_t n = run["N"] * run["C"] * 4;
    auto d = random_buffer<T>(n), act = random_buffer<T>(n, 1.0f, 2);
    run.measure(cost::activation_backward<T>(n), [&](stream_t stream) {
        relu2_backward(d.data(), static_cast<const T*>(d.data()), static_cast<const T*>(act.data()), n,
                       stream);
    });
}

// A vocabulary of 8 C tokens.
template <class T>
void bench_capped_classifier(BenchRun& run) {
    const size_t N = run["N"], V = run["C"] * 8;
    auto logits = random_buffer<T>(N * V);
    simt::DeviceBuffer<float> losses(N);
    simt::DeviceBuffer<int> targets(N);
    simt::fill_zero(targets.data(), targets.bytes(), nullptr);
    run.measure(cost::classifier<T>(N, V, true), [&](stream_t stream) {
        classify(logits.data(), losses.data(), targets.data(), 1.0f, 15.0f, N, static_cast<int>(V),
                 static_cast<int>(V), true, stream);
    });
}

}  // namespace

int main(int argc, char** argv) {
    Bench bench("RMSNorm, RoPE, SwiGLU, ReLU squared and a classifier, forward and backward",
                {{"N", {256, 768}, "rows"}, {"C", {192, 576}, "channels"}}, [](const BenchModel& m) {
                    return BenchShapes{{{"N", m.N()}, {"C", m.C()}}};
                });
    bench.add("rmsnorm_forward", BENCH_TYPES(bench_rmsnorm));
    bench.add("residual_rmsnorm_forward", BENCH_TYPES(bench_residual_rmsnorm));
    bench.add("rmsnorm_backward", BENCH_TYPES(bench_rmsnorm_backward));
    bench.add("rope", BenchBodies{bench_rope<float, false>, bench_rope<bfloat16, false>});
    bench.add("rope_norm_forward", BenchBodies{bench_rope<float, true>, bench_rope<bfloat16, true>});
    bench.add("rope_norm_backward", BENCH_TYPES(bench_rope_norm_backward));
    bench.add("weighted_rope_forward", BENCH_TYPES(bench_weighted_rope));
    bench.add("weighted_rope_backward", BENCH_TYPES(bench_weighted_rope_backward));
    bench.add("swiglu_forward", BENCH_TYPES(bench_swiglu));
    bench.add("swiglu_backward", BENCH_TYPES(bench_swiglu_backward));
    bench.add("relu2_forward", BENCH_TYPES(bench_relu2));
    bench.add("relu2_backward", BENCH_TYPES(bench_relu2_backward));
    bench.add("capped_classifier", BENCH_TYPES(bench_capped_classifier));
    return bench.main(argc, argv);
}
