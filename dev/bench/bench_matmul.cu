// bench_matmul.cu: the matrix products of gemm.h. Defaults: the layers of GPT-2 124M at 256 tokens.
//   bench_matmul --N 768 --C 128 --OC 128,384,512 --dtype fp32
//   bench_matmul --preset 1558M --cold
#include "bench.h"
#include "kernels/quantize.cuh"

namespace {

// The matrices of a linear layer, and scratch for its products.
template <class T>
struct Layer {
    size_t N, C, OC;
    Gemm gemm;
    simt::DeviceBuffer<char> workspace{Gemm::workspace_bytes<T>(N, C, OC)};
    simt::DeviceBuffer<T> inp = random_buffer<T>(N * C), weight = random_buffer<T>(OC * C, 0.02f),
                          out = random_buffer<T>(N * OC), bias = random_buffer<T>(OC);

    explicit Layer(const BenchRun& run)
        : N(run["N"]), C(run["C"]), OC(run["OC"]), gemm({.tf32 = run.tf32()}) {
        gemm.use_workspace(workspace.data(), workspace.bytes());
    }
    Cost cost(size_t tensors_of_C = 0, size_t tensors_of_OC = 0) const {
        return cost::matmul<T>(N, C, OC, tensors_of_C, tensors_of_OC);
    }
};

template <class T>
void bench_forward(BenchRun& run) {
    Layer<T> l(run);
    run.measure(l.cost(), [&](stream_t stream) {
        l.gemm.forward(l.out.data(), l.inp.data(), l.weight.data(), l.bias.data(), l.N, l.C, l.OC, stream);
    });
}

template <class T>
void bench_forward_gelu(BenchRun& run) {
    Layer<T> l(run);
    simt::DeviceBuffer<T> pre_gelu(l.N * l.OC);
    run.measure(l.cost(0, 1), [&](stream_t stream) {
        l.gemm.forward(l.out.data(), l.inp.data(), l.weight.data(), l.bias.data(), l.N, l.C, l.OC, stream,
                       Activation::gelu, pre_gelu.data());
    });
}

// Weights of int8, as a prompt has them with generate_gpt2 --quantize int8.
template <class T>
void bench_forward_int8(BenchRun& run) {
    Layer<T> l(run);
    simt::DeviceBuffer<int8_t> weight(l.OC * l.C);
    simt::DeviceBuffer<float> scales(l.OC);
    simt::DeviceBuffer<char> scratch(Gemm::int8_scratch_bytes<T>(l.N, l.C, l.OC));
    quantize(weight.data(), scales.data(), random_buffer<float>(l.C * l.OC).data(), l.OC,
             static_cast<int>(l.C), stream_t{});
    run.measure(l.cost(), [&](stream_t stream) {
        l.gemm.forward_int8(l.out.data(), l.inp.data(), {weight.data(), scales.data()}, l.bias.data(), l.N,
                            l.C, l.OC, std::as_writable_bytes(std::span(scratch.data(), scratch.bytes())),
                            stream);
    });
}

template <class T>
void bench_backward_input(BenchRun& run) {
    Layer<T> l(run);
    run.measure(l.cost(), [&](stream_t stream) {
        l.gemm.backward_input(l.inp.data(), l.out.data(), l.weight.data(), l.N, l.C, l.OC, stream);
    });
}

template <class T>
void bench_backward_input_gelu(BenchRun& run) {
    Layer<T> l(run);
    const auto pre_gelu = random_buffer<T>(l.N * l.C);
    run.measure(l.cost(1), [&](stream_t stream) {
        l.gemm.backward_input(l.inp.data(), l.out.data(), l.weight.data(), l.N, l.C, l.OC, stream,
                              Activation::gelu, pre_gelu.data());
    });
}

// Gradients are accumulated, as in every micro-step but the first.
template <class T, bool Bias>
void bench_backward_weight(BenchRun& run) {
    Layer<T> l(run);
    simt::DeviceBuffer<float> dweight(l.OC * l.C), dbias(l.OC);
    simt::fill_zero(dweight.data(), dweight.bytes(), nullptr);
    simt::fill_zero(dbias.data(), dbias.bytes(), nullptr);
    run.measure(cost::matmul_weight<T>(l.N, l.C, l.OC, true), [&](stream_t stream) {
        l.gemm.backward_weight(dweight.data(), Bias ? dbias.data() : nullptr, l.out.data(), l.inp.data(), l.N,
                               l.C, l.OC, true, stream);
    });
}

}  // namespace

int main(int argc, char** argv) {
    Bench bench(
        "Matrix products of a linear layer: out (N, OC) = inp (N, C) weight (OC, C)^T and its gradients",
        {{"N", {256}, "tokens"},
         {"C", {768}, "channels in"},
         {"OC", {768, 2304, 3072, 50304}, "channels out"}},
        [](const BenchModel& m) {
            BenchShapes shapes;
            const std::pair<size_t, size_t> layers[] = {
                {m.C(), 3 * m.C()}, {m.C(), m.C()}, {m.C(), 4 * m.C()}, {4 * m.C(), m.C()}, {m.C(), m.Vp()}};
            for (const auto& [C, OC] : layers) shapes.push_back({{"N", m.N()}, {"C", C}, {"OC", OC}});
            return shapes;
        });
    bench.add("matmul_forward", BENCH_TYPES(bench_forward));
    bench.add("matmul_forward_int8", BENCH_TYPES(bench_forward_int8));
    bench.add("matmul_forward_gelu", BENCH_TYPES(bench_forward_gelu));
    bench.add("matmul_backward_input", BENCH_TYPES(bench_backward_input));
    bench.add("matmul_backward_input_gelu", BENCH_TYPES(bench_backward_input_gelu));
    bench.add("matmul_backward_weight",
              BenchBodies{bench_backward_weight<float, false>, bench_backward_weight<bfloat16, false>});
    bench.add("matmul_backward_weight_bias",
              BenchBodies{bench_backward_weight<float, true>, bench_backward_weight<bfloat16, true>});
    return bench.main(argc, argv);
}
