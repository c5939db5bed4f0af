// Causal attention, forward and backward, by every backend of this build:
//   bench_attention --B 12 --T 64 --NH 4 --HS 32
#include <algorithm>

#include "bench.h"
#include "kernels/attention/attention.h"

namespace {

template <class T>
struct Tensors {
    AttentionShape shape;
    size_t count, rows;
    simt::DeviceBuffer<T> qkv, dqkv, out, dout;
    simt::DeviceBuffer<float> lse;
    simt::DeviceBuffer<char> workspace;

    Tensors(const BenchRun& run, const Attention& attention)
        : shape{static_cast<int>(run["B"]), static_cast<int>(run["T"]), static_cast<int>(run["NH"]),
                static_cast<int>(run["HS"])},
          count(run["B"] * run["T"] * run["NH"] * run["HS"]),
          rows(count / run["HS"]),
          qkv(random_buffer<T>(3 * count)),
          dqkv(3 * count),
          out(count),
          dout(random_buffer<T>(count)),
          lse(rows),
          workspace(attention.workspace_bytes<T>(shape)) {}
};

template <class T>
void forward(BenchRun& run, AttentionBackend backend) {
    const Attention attention(backend);
    const Tensors<T> t(run, attention);
    run.measure(cost::attention_forward<T>(t.shape), [&](stream_t stream) {
        attention.forward(t.out.data(), t.lse.data(), t.qkv.data(), t.shape, t.workspace.data(), stream);
    });
}

template <class T>
void backward(BenchRun& run, AttentionBackend backend) {
    const Attention attention(backend);
    const Tensors<T> t(run, attention);
    attention.forward(t.out.data(), t.lse.data(), t.qkv.data(), t.shape, t.workspace.data(), nullptr);
    run.measure(cost::attention_backward<T>(t.shape), [&](stream_t stream) {
        attention.backward(t.dqkv.data(), t.dout.data(), t.qkv.data(), t.out.data(), t.lse.data(), t.shape,
                           t.workspace.data(), stream);
    });
}

// The backend's benchmark for T, or none if the backend does not support T (cuDNN has no fp32).
template <class T>
std::function<void(BenchRun&)> body(void (*measured)(BenchRun&, AttentionBackend), AttentionBackend backend) {
    const std::vector<AttentionBackend> available = Attention::available<T>();
    if (std::find(available.begin(), available.end(), backend) == available.end()) return nullptr;
    return [=](BenchRun& run) { measured(run, backend); };
}

}  // namespace

int main(int argc, char** argv) {
    Bench bench("Causal attention, forward and backward",
                {{"B", {4}, "sequences"},
                 {"T", {64, 1024}, "tokens a sequence"},
                 {"NH", {12}, "heads"},
                 {"HS", {64}, "head size"}},
                [](const BenchModel& m) {
                    return BenchShapes{{{"B", m.B}, {"T", m.T}, {"NH", m.NH()}, {"HS", m.HS()}}};
                });
    std::vector<AttentionBackend> backends = Attention::available<float>();
    for (const AttentionBackend backend : Attention::available<bfloat16>()) {
        if (std::find(backends.begin(), backends.end(), backend) == backends.end())
            backends.push_back(backend);
    }
    for (const AttentionBackend backend : backends) {
        const std::string name = attention_backend_name(backend);
        bench.add("attention_forward_" + name,
                  {body<float>(forward<float>, backend), body<bfloat16>(forward<bfloat16>, backend)});
        bench.add("attention_backward_" + name,
                  {body<float>(backward<float>, backend), body<bfloat16>(backward<bfloat16>, backend)});
    }
    return bench.main(argc, argv);
}
