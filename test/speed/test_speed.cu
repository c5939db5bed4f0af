// test_speed.cu: the CPU's kernels against a copy of the same bytes, and the small model's step against
// its own matrix products. A compiler that keeps vectors in memory makes kernels many times slower, and
// every other test still passes. Only ratios are judged, of times taken in turns by one thread's own
// clock: a slower or busy machine has the same ratios.
#include <gtest/gtest.h>
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "kernels/attention/rope.cuh"
#include "kernels/gelu.cuh"
#include "kernels/gemm/onednn_product.h"
#include "kernels/layernorm.cuh"
#include "kernels/simt/int8_words.h"
#include "kernels/simt/timing.h"
#include "model.cuh"
#include "trainer/engine/model.h"
#include "trainer/run/peaks.h"

namespace {

// Seconds for which body keeps this thread busy; the clock stops while another thread has its core.
template <class Body>
double seconds(Body body) {
    const auto now = [] {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double start = now();
    body();
    return now() - start;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// The median time of work(i) over that of yardstick(i), for i from 0 to rounds - 1, in turns.
template <class Work, class Yardstick>
double ratio(size_t rounds, Work work, Yardstick yardstick) {
    std::vector<double> times[2];
    for (size_t i = 0; i < rounds; i++) {
        times[0].push_back(seconds([&] { work(i); }));
        times[1].push_back(seconds([&] { yardstick(i); }));
    }
    return median(times[0]) / median(times[1]);
}

class Speed : public testing::Test {
protected:
    void SetUp() override {
        if (simt::cpu_vector_bytes < 64) GTEST_SKIP() << "the bounds are of processors with AVX-512";
        omp_set_num_threads(1);
    }
};

// A call takes 2^15 elements: always the first ones, which stay in the second-level cache, or, if cold,
// the next of 64 MiB of each tensor, which come from memory. No tensor is smaller than a huge page: small
// pages map to the cache's sets at random, and a copy's time would vary with them.
template <class T>
struct Tensors {
    static constexpr size_t chunk = size_t{1} << 15, huge_page = size_t{2} << 20, rounds = 512;
    const size_t chunks, elements;
    simt::DeviceBuffer<T> out{elements}, inp{elements}, copied{elements}, original{elements};

    explicit Tensors(bool cold)
        : chunks(cold ? (size_t{64} << 20) / (chunk * sizeof(T)) : 1),
          elements(std::max(chunks * chunk, huge_page / sizeof(T))) {
        std::mt19937 generator(1);
        std::normal_distribution<float> normal;
        for (size_t i = 0; i < chunk; i++) inp.data()[i] = T(normal(generator));
        for (size_t i = chunk; i < elements; i++) inp.data()[i] = inp.data()[i - chunk];
        std::memcpy(original.data(), inp.data(), inp.bytes());
        std::memset(out.data(), 0, out.bytes());
        std::memset(copied.data(), 0, copied.bytes());
    }

    // The time of kernel(out, inp) for a chunk over that of a copy.
    template <class Kernel>
    double over_copy(Kernel kernel) {
        const auto at = [&](auto& buffer, size_t i) { return buffer.data() + i % chunks * chunk; };
        return ratio(
            rounds, [&](size_t i) { kernel(at(out, i), at(inp, i)); },
            [&](size_t i) { std::memcpy(at(copied, i), at(original, i), chunk * sizeof(T)); });
    }
};

template <class T>
double layernorm_ratio(int C, bool cold) {
    Tensors<T> tensors(cold);
    const size_t N = Tensors<T>::chunk / static_cast<size_t>(C);
    std::vector<float> mean(N), rstd(N);
    const std::vector<T> w(static_cast<size_t>(C), T(1.0f));
    return tensors.over_copy([&](T* out, const T* inp) {
        const T* const no_branch = nullptr;
        layernorm_forward(out, out, mean.data(), rstd.data(), inp, no_branch, w.data(), w.data(), 1e-5f, N, C,
                          nullptr);
    });
}

template <class T>
double gelu_ratio(bool cold) {
    Tensors<T> tensors(cold);
    return tensors.over_copy([&](T* out, const T* inp) { gelu_forward(out, inp, tensors.chunk, nullptr); });
}

// A bound is the geometric mean of the measured ratio and the ratio when g++ kept vectors in memory
// (docs/performance.md). Other work can move a ratio for a moment, so the smallest of three counts.
template <class Measure>
void expect_at_most(double bound, const char* what, Measure measure) {
    const double smallest = std::min({measure(), measure(), measure()});
    std::printf("%-32s %6.2f, at most %.1f\n", what, smallest, bound);
    EXPECT_LE(smallest, bound) << what;
}

TEST_F(Speed, LayernormAgainstCopy) {
    expect_at_most(13, "layernorm fp32, C 128, in cache", [] { return layernorm_ratio<float>(128, false); });
    expect_at_most(8, "layernorm fp32, C 1024, in cache", [] { return layernorm_ratio<float>(1024, false); });
    expect_at_most(2.6, "layernorm fp32, C 1024, memory", [] { return layernorm_ratio<float>(1024, true); });
    expect_at_most(28, "layernorm bf16, C 128, in cache",
                   [] { return layernorm_ratio<bfloat16>(128, false); });
    expect_at_most(16, "layernorm bf16, C 1024, in cache",
                   [] { return layernorm_ratio<bfloat16>(1024, false); });
}

// In bf16 the exponential takes longer than memory does on some machines, so only the cache is a yardstick.
TEST_F(Speed, GeluAgainstCopy) {
    expect_at_most(13, "GELU fp32, in cache", [] { return gelu_ratio<float>(false); });
    expect_at_most(2.4, "GELU fp32, memory", [] { return gelu_ratio<float>(true); });
    expect_at_most(21, "GELU bf16, in cache", [] { return gelu_ratio<bfloat16>(false); });
}

// Heads of 32 channels turn half a head at a time: half of bf16's longest vector, which needs instructions of
// its own. 3.4 while these were scalar.
double rope_bf16_over_fp32() {
    const AttentionShape shape{.B = 1, .T = 64, .NH = 4, .HS = 32, .NKV = 4};
    const std::vector<float> table = rope_table(shape.T, shape.HS, 10000);
    const size_t elements = static_cast<size_t>(shape.T) * 3 * 4 * 32;
    std::vector<float> rstd(static_cast<size_t>(shape.T) * 8), fp32(elements, 1.0f);
    std::vector<bfloat16> bf16(elements, bfloat16(1.0f));
    const auto turn = [&](auto& qkv) {
        rope(qkv.data(), {1e-6f, rstd.data()}, {table.data()}, shape, nullptr);
    };
    return ratio(
        200, [&](size_t) { turn(bf16); }, [&](size_t) { turn(fp32); });
}
TEST_F(Speed, RopeInBf16AgainstFp32) { expect_at_most(2, "RoPE bf16, heads of 32", rope_bf16_over_fp32); }

// Matrix products, with memory of their own.
class Products {
public:
    struct Shape {
        size_t C, OC, calls;
    };
    Products(size_t N, const std::vector<Shape>& shapes) : N_(N) {
        size_t workspace = 0;
        for (const auto& [in, out, calls] : shapes) {
            layers_.push_back(std::make_unique<Layer>(N, in, out, calls));
            workspace = std::max(workspace, Gemm::workspace_bytes<float>(N, in, out));
        }
        workspace_ = std::make_unique<simt::DeviceBuffer<char>>(workspace);
        gemm_.use_workspace(workspace_->data(), workspace_->bytes());
    }

    void step() {
        for (const auto& l : layers_) {
            float *inp = l->inp.data(), *dinp = l->dinp.data(), *weight = l->weight.data(),
                  *out = l->out.data();
            for (size_t i = 0; i < l->calls; i++) {
                gemm_.forward<float>(out, inp, weight, nullptr, N_, l->C, l->OC, nullptr);
                gemm_.backward_weight(l->dweight.data(), nullptr, out, inp, N_, l->C, l->OC, false, nullptr);
                gemm_.backward_input(dinp, out, weight, N_, l->C, l->OC, nullptr);
            }
        }
    }

    // Runs the product of the first layer.
    void forward() {
        const Layer& l = *layers_[0];
        gemm_.forward<float>(l.out.data(), l.inp.data(), l.weight.data(), nullptr, N_, l.C, l.OC, nullptr);
    }

private:
    struct Layer {
        size_t C, OC, calls;
        simt::DeviceBuffer<float> inp, dinp, weight, out, dweight;
        Layer(size_t N, size_t C, size_t OC, size_t calls)
            : C(C),
              OC(OC),
              calls(calls),
              inp(N * C),
              dinp(N * C),
              weight(OC * C),
              out(N * OC),
              dweight(OC * C) {
            simt::fill_zero(inp.data(), inp.bytes(), nullptr);
            simt::fill_zero(weight.data(), weight.bytes(), nullptr);
        }
    };
    const size_t N_;
    Gemm gemm_{{}};
    std::vector<std::unique_ptr<Layer>> layers_;
    std::unique_ptr<simt::DeviceBuffer<char>> workspace_;
};

double step_over_products() {
    constexpr ModelConfig config;  // that of recipes/shakespeare_gpt2.cfg
    constexpr int B = 12, sequence = 64;
    constexpr size_t N = B * sequence;
    Model<float> model(make_family<float>(config), {.B = B, .T = sequence, .total_batch = N});
    model.allocate();
    std::mt19937 generator(1);
    std::vector<int> tokens(N);
    for (int& token : tokens) token = static_cast<int>(generator() % 256);
    const OwnedBatch batch(B, sequence, tokens, tokens);
    const size_t C = config.C, Vp = static_cast<size_t>(config.Vp()), L = config.L;
    Products products(N, {{C, 3 * C, L}, {C, C, L}, {C, 4 * C, L}, {4 * C, C, L}, {C, Vp, 1}});
    const auto step = [&](size_t) {
        model.forward(batch);
        model.backward();
        model.update(reference_adamw);
    };
    step(0), products.step();  // primitives are built, pages are touched
    return ratio(20, step, [&](size_t) { products.step(); });
}

// Muon's product that scales and adds, over the same without. A library's reference loop, which computes it
// just as well, would take hundreds of times as long.
template <class T>
double scaled_sum_over_product() {
    constexpr size_t n = 192;
    simt::DeviceBuffer<T> a(n * n), out(n * n);
    simt::fill_zero(a.data(), a.bytes(), nullptr);
    simt::DeviceBuffer<char> workspace(Gemm::product_workspace_bytes<T>(n, n, n));
    Gemm gemm({});
    gemm.use_workspace(workspace.data(), workspace.bytes());
    const auto multiply = [&](float alpha, float beta) {
        gemm.product<T>({n, n, n, alpha, beta}, out.data(), {a.data()}, {a.data()}, nullptr, a.data());
    };
    multiply(2, -1), multiply(1, 0);  // primitives are built
    return ratio(
        20, [&](size_t) { multiply(2, -1); }, [&](size_t) { multiply(1, 0); });
}

TEST(MuonsProducts, AFactorAndASumCostLittle) {
    omp_set_num_threads(1);
    expect_at_most(3, "scaled sum fp32", scaled_sum_over_product<float>);
    expect_at_most(3, "scaled sum bf16", scaled_sum_over_product<bfloat16>);
}

// A prompt's product with int8 weights, over the same in fp32.
double int8_over_fp32() {
    constexpr size_t N = 256, C = 768;
    simt::DeviceBuffer<int8_t> weights(C * C);
    simt::DeviceBuffer<bfloat16> inp(N * C), out(N * C);
    simt::DeviceBuffer<float> scales(C);
    simt::DeviceBuffer<char> scratch(Gemm::int8_scratch_bytes<bfloat16>(N, C, C));
    simt::fill_zero(weights.data(), weights.bytes(), nullptr);
    simt::fill_zero(inp.data(), inp.bytes(), nullptr);
    simt::fill_zero(scales.data(), scales.bytes(), nullptr);
    Gemm gemm({});
    Products fp32(N, {{C, C, 1}});
    const auto int8 = [&] {
        gemm.forward_int8<bfloat16>(out.data(), inp.data(), {weights.data(), scales.data()}, nullptr, N, C, C,
                                    std::as_writable_bytes(std::span(scratch.data(), scratch.bytes())),
                                    nullptr);
    };
    int8(), fp32.forward();  // primitives are built, pages are touched
    return ratio(
        20, [&](size_t) { int8(); }, [&](size_t) { fp32.forward(); });
}

// 0.35 on a Zen 4. With AMX the library multiplies, and without AVX512_VNNI other ratios hold.
TEST_F(Speed, Int8ProductAgainstFp32) {
    if (!simt::multiplies_int8 || onednn_has(dnnl::cpu_isa::avx512_core_amx))
        GTEST_SKIP() << "the bound is of processors with AVX512_VNNI and without AMX";
    expect_at_most(0.6, "int8 weights and bf16", int8_over_fp32);
}

// The yardsticks of --profile and MFU, against the same work timed here: bytes or operations that are counted
// by half, or twice, would show. It holds with vectors of any width.
TEST(Peaks, AreWhatTheMachineDoes) {
    omp_set_num_threads(1);
    const auto expect_near = [](const char* what, const auto& peak, const auto& measured) {
        double ratios[3];
        for (double& ratio : ratios) ratio = peak() / measured();
        std::sort(ratios, ratios + 3);
        std::printf("%-32s %6.2f, 0.7 to 1.4\n", what, ratios[1]);
        EXPECT_GT(ratios[1], 0.7) << what;
        EXPECT_LT(ratios[1], 1.4) << what;
    };
    constexpr size_t count = size_t{1} << 26;
    const simt::DeviceBuffer<float> from_buffer(count), to_buffer(count);
    const float* from = from_buffer.data();
    float* to = to_buffer.data();
    simt::fill_zero(from_buffer.data(), from_buffer.bytes(), nullptr);
    // As of the peak, the faster of two kinds of stores counts: plain ones read what they replace, which is a
    // third transfer. With plain ones alone, a peak of half of the bytes had 0.82 of the bandwidth here.
    expect_near("copy bandwidth", measure_copy_bandwidth, [&] {
        const double plain = simt::fastest_milliseconds(5, [&](stream_t) {
            // the compiler would turn a plain copy into a call of memcpy
            for (size_t i = 0; i < count; i++) to[i] = from[i] + 1;
        });
        const double around_caches = simt::fastest_milliseconds(5, [&](stream_t) {
            for (size_t i = 0; i < count; i += 4) _mm_stream_ps(to + i, _mm_load_ps(from + i));
        });
        return 8e3 * static_cast<double>(count) /
               std::min(plain, around_caches);  // 4 bytes read and 4 written
    });
    Products product(1024, {{1024, 1024, 1}});
    expect_near(
        "matrix product", [] { return measure_matmul_rate(DType::fp32, true); },
        [&] {
            return 2 * 1024.0 * 1024.0 * 1024.0 /
                   (1e-3 * simt::fastest_milliseconds(5, [&](stream_t) { product.forward(); }));
        });
}

// In fp32: how fast bf16 is multiplied differs between processors by a factor of eight.
TEST_F(Speed, SmallModelsStepAgainstItsProducts) { expect_at_most(1.8, "step fp32", step_over_products); }

}  // namespace
