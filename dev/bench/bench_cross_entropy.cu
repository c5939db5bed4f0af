// bench_cross_entropy.cu: the fused classifier with gradient (training) and without (evaluation).
#include "bench.h"
#include "kernels/cross_entropy.cuh"

template <class T, bool write_dlogits>
void bench_classifier(BenchRun& run) {
    const size_t N = run["N"], V = run["V"], Vp = simt::ceil_div<size_t>(V, 128) * 128;
    simt::DeviceBuffer<T> logits = random_buffer<T>(N * Vp);
    simt::DeviceBuffer<float> losses(N);
    simt::DeviceBuffer<int> targets(N);
    simt::fill_zero(targets.data(), targets.bytes(), nullptr);
    run.measure(cost::classifier<T>(N, Vp, write_dlogits), [&](stream_t stream) {
        cross_entropy_forward_backward(logits.data(), losses.data(), targets.data(),
                                       1.0f / static_cast<float>(N), N, static_cast<int>(V),
                                       static_cast<int>(Vp), write_dlogits, stream);
    });
}

int main(int argc, char** argv) {
    Bench bench("Softmax, cross-entropy and their gradient in place; V is padded to a multiple of 128",
                {{"N", {256, 768}, "rows"}, {"V", {256, 50257}, "vocabulary"}}, [](const BenchModel& m) {
                    return BenchShapes{{{"N", m.N()}, {"V", m.V()}}};
                });
    bench.add("cross_entropy_training",
              BenchBodies{bench_classifier<float, true>, bench_classifier<bfloat16, true>});
    bench.add("cross_entropy_evaluation",
              BenchBodies{bench_classifier<float, false>, bench_classifier<bfloat16, false>});
    return bench.main(argc, argv);
}
