// bench_decode.cu: generation, one token at a time: products with few rows, attention over the cache, drawing
// a token, and whole steps of GPT-2 124M or of the preset's model.
//   The bytes are those of the weights and the cache, each read once. They bound a step with one sample.
#include <random>

#include "bench.h"
#include "kernels/decode/decode_attention.cuh"
#include "kernels/decode/decode_matmul.cuh"
#include "kernels/decode/decode_sample.cuh"
#include "kernels/global_norm.cuh"
#include "kernels/quantize.cuh"
#include "trainer/inference/generator.h"

// The number of matrices that take 64 MiB or more in total. A product that cycles through them reads its
// weights from memory, as a model does layer by layer.
template <class Weight>
size_t matrices_of(size_t elements) {
    return ceil_div<size_t>(size_t{64} << 20, elements * sizeof(Weight));
}

template <class T>
void bench_matmul(BenchRun& run) {
    const size_t K = run["K"], C = run["C"], OC = run["OC"], count = matrices_of<T>(C * OC);
    simt::DeviceBuffer<T> out(K * OC), inp = random_buffer<T>(K * C),
                                       weight = random_buffer<T>(count * OC * C), bias = random_buffer<T>(OC);
    size_t next = 0;
    run.measure({.bytes = C * OC * sizeof(T), .flops = 2 * K * C * OC}, [&](stream_t stream) {
        decode_matmul(out.data(), inp.data(), weight.data() + next++ % count * C * OC,
                      static_cast<const float*>(nullptr), bias.data(), {K, C, OC}, Activation::none, stream);
    });
}

template <class T>
void bench_matmul_int8(BenchRun& run) {
    const size_t K = run["K"], C = run["C"], OC = run["OC"], count = matrices_of<int8_t>(C * OC);
    simt::DeviceBuffer<T> out(K * OC), inp = random_buffer<T>(K * C), bias = random_buffer<T>(OC);
    simt::DeviceBuffer<int8_t> weight(count * OC * C);
    simt::DeviceBuffer<float> scales(OC);
    for (size_t i = 0; i < count; i++)
        quantize(weight.data() + i * C * OC, scales.data(), random_buffer<float>(C * OC).data(), OC,
                 static_cast<int>(C), stream_t{});
    size_t next = 0;
    run.measure({.bytes = C * OC, .flops = 2 * K * C * OC}, [&](stream_t stream) {
        decode_matmul(out.data(), inp.data(), weight.data() + next++ % count * C * OC, scales.data(),
                      bias.data(), {K, C, OC}, Activation::none, stream);
    });
}

// Attention of one layer; the cache's layers have 64 MiB or more in total.
template <class T>
void bench_attention(BenchRun& run) {
    const int K = static_cast<int>(run["K"]), NH = static_cast<int>(run["NH"]),
              HS = static_cast<int>(run["HS"]), length = static_cast<int>(run["T"]);
    DecodeCache<T> cache{nullptr, nullptr, K, NH, HS, length};
    const size_t elements = cache.elements(), layers = matrices_of<T>(2 * elements),
                 width = static_cast<size_t>(K) * run["NH"] * run["HS"];
    simt::DeviceBuffer<T> keys = random_buffer<T>(layers * elements),
                          values = random_buffer<T>(layers * elements), out(width),
                          qkv = random_buffer<T>(3 * width);
    simt::DeviceBuffer<float> scratch(decode_attention_scratch(K, NH, HS, length));
    const simt::DeviceBuffer<int> before(1);
    const int others = length - 1;
    simt::copy_to_device(before.data(), &others, sizeof(others), nullptr);
    size_t next = 0;
    run.measure(
        {.bytes = 2 * run["T"] * width * sizeof(T), .flops = 4 * run["T"] * width}, [&](stream_t stream) {
            cache.keys = keys.data() + next % layers * elements;
            cache.values = values.data() + next++ % layers * elements;
            decode_attention(out.data(), qkv.data(), cache, before.data(), length, scratch.data(), stream);
        });
}

// V = 50,257 normally distributed logits a sample, drawn from with top-k 40 and top-p 0.9.
template <class T>
void bench_sample(BenchRun& run) {
    constexpr size_t V = 50257, Vp = 50304;
    const size_t K = run["K"];
    const simt::DeviceBuffer<T> logits = random_buffer<T>(K * Vp);
    const simt::DeviceBuffer<int> tokens(K);
    uint64_t index = 0;
    run.measure({.bytes = K * V * sizeof(T), .flops = 0}, [&](stream_t stream) {
        decode_sample(tokens.data(), SampledRows<T>{logits.data(), Vp, V, static_cast<int>(K)},
                      {.top_k = 40, .top_p = 0.9}, {.index = index++}, stream);
    });
}

// Half a gigabyte that is read: the yardstick of a step, whose weights are only read, too. A copy's, which
// "%bandwidth" refers to, is higher. The two change with what other programs do, so they take turns:
//   bench_decode --preset 124M --K 1 --T 64 --benchmark_filter='step|read' --benchmark_repetitions=9
//       --benchmark_enable_random_interleaving=true
void bench_read(BenchRun& run) {
    constexpr size_t n = size_t{1} << 27;
    simt::DeviceBuffer<float> values(n), sum(1), scratch(global_norm_scratch(n));
    simt::fill_zero(values.data(), values.bytes(), nullptr);
    run.measure(cost::pass<float>(1, n), [&](stream_t stream) {
        global_norm_squared(sum.data(), scratch.data(), values.data(), n, stream);
    });
}

// Steps that start with T tokens in the cache. A full cache is refilled, which counts in the measured time
// but not in the bytes.
template <class T, bool Int8>
void bench_step(BenchRun& run) {
    const ModelConfig& config = run.model();
    Generator<T> generator(
        make_family<T>(config),
        {.samples = static_cast<int>(run["K"]), .max_tokens = config.context, .int8 = Int8});
    generator.allocate();
    std::minstd_rand random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> period(1 << 16);
    for (float& value : period) value = normal(random);
    size_t weight_bytes = 0;
    generator.load([&](const Tensor& tensor, size_t first, std::span<float> to) {
        for (size_t i = 0; i < to.size(); i++) to[i] = period[(first + i) % period.size()];
        if (tensor.name != "transformer.wpe.weight")
            weight_bytes += to.size() * (Int8 && tensor.shape.size() == 2 ? 1 : sizeof(T));
    });
    const std::vector<int> prompt(std::min<size_t>(run["T"], 1023), 1), tokens(run["K"], 2);
    Decoder<T>& decoder = generator.decoder();
    decoder.prefill(prompt);
    const size_t cache_bytes =
        2 * run["K"] * prompt.size() * static_cast<size_t>(config.L * config.C) * sizeof(T);
    run.measure(
        {.bytes = weight_bytes + cache_bytes, .flops = 2 * run["K"] * weight_bytes / (Int8 ? 1 : sizeof(T))},
        [&](stream_t) {
            if (decoder.length() == decoder.max_tokens()) decoder.prefill(prompt);
            decoder.step(tokens);
        });
}

int main(int argc, char** argv) {
    Bench bench(
        "Generation: products of few rows, attention over the cache, a step of GPT-2",
        {{"K", {1, 4}, "samples"},
         {"C", {768}, "channels"},
         {"OC", {3072}, "output channels"},
         {"NH", {12}, "heads"},
         {"HS", {64}, "head size"},
         {"T", {256}, "tokens in the cache"}},
        [](const BenchModel& m) {
            return BenchShapes{
                {{"K", 1}, {"C", m.C()}, {"OC", 4 * m.C()}, {"NH", m.NH()}, {"HS", m.HS()}, {"T", 256}}};
        });
    bench.add("decode_matmul", BENCH_TYPES(bench_matmul));
    bench.add("decode_matmul_int8", BENCH_TYPES(bench_matmul_int8));
    bench.add("decode_attention", BENCH_TYPES(bench_attention));
    bench.add("decode_sample", BENCH_TYPES(bench_sample));
    bench.add("read_memory", BenchBodies{bench_read, bench_read});
    bench.add("decode_step", BenchBodies{bench_step<float, false>, bench_step<bfloat16, false>});
    bench.add("decode_step_int8", BenchBodies{bench_step<float, true>, bench_step<bfloat16, true>});
    return bench.main(argc, argv);
}
