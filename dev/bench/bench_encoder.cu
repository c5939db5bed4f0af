// bench_encoder.cu: token and position embedding, forward and backward; tokens uniform over the vocabulary,
// or one for the whole batch.
#include <algorithm>
#include <numeric>
#include <random>

#include "bench.h"
#include "kernels/encoder.cuh"

template <class T>
struct Batch {
    int B, T_, C;
    size_t positions = static_cast<size_t>(B) * static_cast<size_t>(T_), channels = static_cast<size_t>(C);
    simt::DeviceBuffer<int> tokens{positions}, order{positions};
    simt::DeviceBuffer<T> x = random_buffer<T>(positions * channels);

    Batch(const BenchRun& run, bool one_token)
        : B(static_cast<int>(run["B"])), T_(static_cast<int>(run["T"])), C(static_cast<int>(run["C"])) {
        std::vector<int> host(positions), sorted(positions);
        std::minstd_rand generator(1);
        for (int& token : host) token = one_token ? 0 : static_cast<int>(generator() % run["V"]);
        std::iota(sorted.begin(), sorted.end(), 0);
        std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) {
            return host[static_cast<size_t>(a)] < host[static_cast<size_t>(b)];
        });
        simt::copy_to_device(tokens.data(), host.data(), tokens.bytes(), nullptr);
        simt::copy_to_device(order.data(), sorted.data(), order.bytes(), nullptr);
        simt::stream_synchronize(nullptr);
    }
};

template <class T>
void bench_forward(BenchRun& run) {
    Batch<T> b(run, false);
    simt::DeviceBuffer<T> wte = random_buffer<T>(run["V"] * b.channels),
                          wpe = random_buffer<T>(run["T"] * b.channels);
    run.measure(cost::encoder<T>(b.positions, b.channels), [&](stream_t stream) {
        encoder_forward(b.x.data(), b.tokens.data(), wte.data(), wpe.data(), b.B, b.T_, b.C, stream);
    });
}

template <class T, bool one_token>
void bench_backward(BenchRun& run) {
    Batch<T> b(run, one_token);
    simt::DeviceBuffer<float> dwte = random_buffer<float>(run["V"] * b.channels),
                              dwpe = random_buffer<float>(run["T"] * b.channels);
    run.measure(cost::encoder<T>(b.positions, b.channels), [&](stream_t stream) {
        encoder_backward(dwte.data(), dwpe.data(), b.x.data(), b.tokens.data(), b.order.data(), b.B, b.T_,
                         b.C, stream);
    });
}

int main(int argc, char** argv) {
    Bench bench("Token and position embedding, forward and backward",
                {{"B", {4, 12}, "sequences"},
                 {"T", {64}, "tokens a sequence"},
                 {"C", {128, 768}, "channels"},
                 {"V", {256, 50257}, "vocabulary"}},
                [](const BenchModel& m) {
                    return BenchShapes{{{"B", m.B}, {"T", m.T}, {"C", m.C()}, {"V", m.V()}}};
                });
    bench.add("encoder_forward", BENCH_TYPES(bench_forward));
    bench.add("encoder_backward", BenchBodies{bench_backward<float, false>, bench_backward<bfloat16, false>});
    bench.add("encoder_backward_one_token",
              BenchBodies{bench_backward<float, true>, bench_backward<bfloat16, true>});
    return bench.main(argc, argv);
}
