// training_kernels.cu: launches attention and the kernels of a training step that memory bounds once each:
// GPT-2 124M, bf16, micro-batches of 64 x 1024 tokens. test_counters.py runs it on the software GPU, which
// counts their memory accesses. Each kernel gets a part of the step's rows: with
// SOFTWARE_GPU=multiprocessors=4, where an H200 has 132, a block has as many rows as in training. Prints
// one line per kernel, separated by tabs: the beginning of its name, its operation, its shape, and the
// least number of bytes that it must move.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/adamw.cuh"
#include "kernels/attention/attention_kernel.h"
#include "kernels/attention/rope.cuh"
#include "kernels/capped_cross_entropy.cuh"
#include "kernels/column_sum.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/encoder.cuh"
#include "kernels/gelu.cuh"
#include "kernels/global_norm.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/random.cuh"
#include "kernels/relu2.cuh"
#include "kernels/swiglu.cuh"
#include "trainer/engine/cost.h"

namespace {

constexpr int C = 768, V = 50257, Vp = 50304;
constexpr size_t N = size_t{64} * 1024 * 4 / 132;

void state(const std::string& kernel, const std::string& name, const std::string& shape, size_t least_bytes) {
    std::printf("%s\t%s\t%s\t%zu\n", kernel.c_str(), name.c_str(), shape.c_str(), least_bytes);
}
std::string by(size_t rows, size_t columns) { return std::to_string(rows) + " x " + std::to_string(columns); }

template <class T>
simt::DeviceBuffer<T> on_device(const std::vector<T>& values) {
    simt::DeviceBuffer<T> buffer(values.size());
    simt::copy_to_device(buffer.data(), values.data(), buffer.bytes(), nullptr);
    return buffer;
}

// Small numbers of both signs.
template <class T>
simt::DeviceBuffer<T> numbers(size_t count) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; i++) values[i] = T(0.01f * (static_cast<float>(i % 17) - 8.0f));
    return on_device(values);
}

// RMSNorm, where there is no bias.
void norms(const char* name, const bfloat16* bias) {
    const auto inp = numbers<bfloat16>(N * C), branch = numbers<bfloat16>(N * C),
               weight = numbers<bfloat16>(C);
    const simt::DeviceBuffer<bfloat16> out(N * C), residual(N * C);
    const simt::DeviceBuffer<float> mean(N), rstd(N), scratch(layernorm_backward_scratch(N, C, 3));
    const bool centred = bias;
    for (const bool sums : {false, true}) {
        layernorm_forward(out.data(), residual.data(), mean.data(), rstd.data(), inp.data(),
                          sums ? branch.data() : nullptr, weight.data(), bias, 1e-5f, N, C, nullptr);
        state(fmt::format("layernorm_forward_kernel<RowTiling<simt::Width<32, 16>, 8, 4>, bfloat16, {}, {}",
                          sums, centred),
              fmt::format("{}{}, forward", sums ? "residual + " : "", name), by(N, C),
              sums ? cost::residual_layernorm<bfloat16>(N, C).bytes : cost::layernorm<bfloat16>(N, C).bytes);
    }
    const auto dweight = numbers<float>(C), dbias = numbers<float>(C), sum = numbers<float>(C);
    for (const int sums : {1, 2, 3}) {
        if (centred == (sums == 1)) continue;
        layernorm_backward(out.data(), dweight.data(), centred ? dbias.data() : nullptr,
                           sums == 3 ? sum.data() : nullptr, scratch.data(), branch.data(), out.data(),
                           inp.data(), weight.data(), mean.data(), rstd.data(), N, C, nullptr);
        state(fmt::format("layernorm_backward_wide_kernel<8, bfloat16, {}", sums),
              fmt::format("{}, backward{}", name, sums == 3 ? " with a third sum" : ""), by(N, C),
              cost::layernorm_backward<bfloat16>(N, C, true).bytes);
    }
}

void elementwise() {
    constexpr size_t rows = 512, n = rows * 4 * C, parameters = size_t{12} * C * C / 8;
    const auto inp = numbers<bfloat16>(n), dout = numbers<bfloat16>(n);
    gelu_forward(dout.data(), inp.data(), n, nullptr);
    state("gelu_forward_kernel", "GELU, forward", by(rows, 4 * C), cost::activation<bfloat16>(n).bytes);
    gelu_backward(dout.data(), dout.data(), inp.data(), n, nullptr);
    state("gelu_backward_kernel", "GELU, backward", by(rows, 4 * C),
          cost::activation_backward<bfloat16>(n).bytes);

    const auto master = numbers<float>(parameters), m = numbers<float>(parameters),
               v = numbers<float>(parameters), grads = numbers<float>(parameters);
    const simt::DeviceBuffer<bfloat16> params(parameters);
    const simt::DeviceBuffer<float> norm(1), scratch(global_norm_scratch(parameters));
    const std::string shape = std::to_string(parameters) + " parameters";
    global_norm_squared(norm.data(), scratch.data(), grads.data(), parameters, nullptr);
    state("global_norm_kernel", "gradient norm", shape, cost::pass<float>(1, parameters).bytes);
    const auto optimizer = on_device<OptimizerState>(
        {{.lr = 1e-3, .step = 1, .scale = 1.0f, .bias_correction1 = 0.1f, .sqrt_bias_correction2 = 0.05f}});
    adamw_update(params.data(), master.data(), m.data(), v.data(), grads.data(), parameters,
                 {0.9, 0.95, 1e-8, 0.1}, optimizer.data(), nullptr);
    state("adamw_kernel", "AdamW", shape, cost::update(parameters, 2, sizeof(bfloat16)).bytes);
    convert(params.data(), master.data(), parameters, nullptr);
    state("convert_kernel", "fp32 to bf16", shape,
          cost::pass<float>(1, parameters).bytes + cost::pass<bfloat16>(1, parameters).bytes);
}

void classifier() {
    constexpr size_t rows = 64;
    const auto logits = numbers<bfloat16>(rows * Vp);
    const auto targets = on_device(std::vector<int>(rows, 464));
    const simt::DeviceBuffer<float> losses(rows);
    cross_entropy_forward_backward(logits.data(), losses.data(), targets.data(), 1e-3f, rows, V, Vp, true,
                                   nullptr);
    state("cross_entropy_gradient_kernel", "classifier with gradient", by(rows, V),
          cost::classifier<bfloat16>(rows, Vp, true).bytes);
    classify(logits.data(), losses.data(), targets.data(), 1e-3f, 15.0f, rows, V, Vp, true, nullptr);
    state("capped_cross_entropy_kernel", "capped classifier with gradient", by(rows, V),
          cost::classifier<bfloat16>(rows, Vp, true).bytes);
}

// Token frequencies like those of words: the k-th is drawn in proportion to 1 / k.
std::vector<int> text(size_t count) {
    std::mt19937 random(1);
    std::vector<int> tokens(count);
    for (int& token : tokens)
        token = static_cast<int>(std::pow(static_cast<double>(V), random() * 0x1p-32)) - 1;
    return tokens;
}

void encoder() {
    constexpr int B = 2, T = 1024;
    constexpr size_t rows = size_t{B} * T;
    const std::vector<int> tokens = text(rows);
    std::vector<int> order(rows);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
    });
    const size_t met = std::set<int>(tokens.begin(), tokens.end()).size();

    const auto tokens_there = on_device(tokens), order_there = on_device(order);
    const auto wpe = numbers<bfloat16>(size_t{T} * C), wte = numbers<bfloat16>(size_t{V} * C),
               dout = numbers<bfloat16>(rows * C);
    const auto dwpe = numbers<float>(size_t{T} * C), dwte = numbers<float>(size_t{V} * C);
    const simt::DeviceBuffer<bfloat16> out(rows * C);
    encoder_forward(out.data(), tokens_there.data(), wte.data(), wpe.data(), B, T, C, nullptr);
    encoder_backward(dwte.data(), dwpe.data(), dout.data(), tokens_there.data(), order_there.data(), B, T, C,
                     nullptr);

    const size_t pass = cost::pass<bfloat16>(1, rows * C).bytes;
    const std::string shape = std::to_string(B) + " x " + by(T, C) + ", " + std::to_string(met) + " tokens";
    state("encoder_forward_kernel", "encoder, forward", shape,
          pass + cost::pass<bfloat16>(1, (met + T) * C).bytes);
    state("encoder_backward_token_kernel", "encoder, backward by token", shape,
          pass + cost::pass<float>(2, met * C).bytes);
    state("encoder_backward_position_kernel", "encoder, backward by position", shape,
          pass + cost::pass<float>(2, size_t{T} * C).bytes);
}

void column_sums() {
    constexpr size_t columns = 3 * C;
    const auto dout = numbers<bfloat16>(N * columns);
    const auto dbias = numbers<float>(columns);
    const simt::DeviceBuffer<char> scratch(
        column_sum_scratch_bytes<simt::NativeWidth<32>, bfloat16>(N, columns));
    column_sum(dbias.data(), dout.data(), N, columns, reinterpret_cast<float*>(scratch.data()), nullptr);
    state("column_sum_detail::partial_kernel", "bias gradient by column sums", by(N, columns),
          cost::pass<bfloat16>(1, N * columns).bytes);
}

void attention() {
    const AttentionShape shape{.B = 1, .T = 1024, .NH = 2, .HS = 64};
    const size_t rows = size_t{2} * 1024, count = rows * 64;
    const auto qkv = numbers<bfloat16>(3 * count), dout = numbers<bfloat16>(count);
    const simt::DeviceBuffer<bfloat16> out(count), dqkv(3 * count);
    const simt::DeviceBuffer<float> lse(rows);
    const simt::DeviceBuffer<char> scratch(attention_kernel_workspace_bytes(shape));
    attention_kernel_forward(out.data(), lse.data(), qkv.data(), shape, nullptr);
    attention_kernel_backward(dqkv.data(), dout.data(), qkv.data(), out.data(), lse.data(), shape,
                              scratch.data(), nullptr);

    const std::string described = "2 heads, 1024 x 64";
    state("attention_mma_forward_kernel", "attention, forward", described,
          cost::attention_forward<bfloat16>(shape).bytes);
    // One kernel reads q, k, v, out and dout, and writes dq; the other reads q, k, v and dout, and writes
    // dk and dv. Both also have two numbers per row.
    const size_t backward = cost::attention<bfloat16>(shape, 5, 6).bytes + rows * sizeof(float);
    state("attention_mma_backward_q_kernel", "attention, backward of q", described, backward);
    state("attention_mma_backward_kv_kernel", "attention, backward of k and v", described, backward);
}

// Runs the kernels that only the blocks of Llama, Qwen3 and nanochat have: 12 heads over 4, an MLP of 2048.
void llama() {
    constexpr int H = 2048;
    norms("RMSNorm", nullptr);

    constexpr AttentionShape shape{.B = 2, .T = 512, .NH = 12, .HS = 64, .NKV = 4};
    const auto qkv = numbers<bfloat16>(size_t{2} * 512 * 20 * 64);
    const auto table = on_device(rope_table(shape.T, shape.HS, 10000));
    const simt::DeviceBuffer<float> head_rstd(size_t{2} * 512 * 16);
    const std::string heads = "2 x 512, 12 + 4 heads of 64";
    const auto dqkv = numbers<bfloat16>(size_t{2} * 512 * 20 * 64);
    const auto q_weight = numbers<bfloat16>(64), k_weight = numbers<bfloat16>(64),
               x = numbers<bfloat16>(size_t{2} * 512 * 16 * 64);
    rope(qkv.data(), {}, {table.data()}, shape, nullptr);
    state("rope_kernel<simt::Width<4, 16>, 8, bfloat16, (HeadNorm)0", "RoPE", heads,
          cost::rope<bfloat16>(shape).bytes + table.bytes());
    HeadNorms<bfloat16> norms{1e-6f, head_rstd.data()};
    rope(qkv.data(), norms, {table.data()}, shape, nullptr);
    state("rope_kernel<simt::Width<4, 16>, 8, bfloat16, (HeadNorm)1", "RoPE and norm", heads,
          cost::rope<bfloat16>(shape).bytes + table.bytes() + head_rstd.bytes());
    norms.y = qkv.data();
    rope(dqkv.data(), norms, {table.data(), -1}, shape, nullptr);
    state("rope_kernel<simt::Width<4, 16>, 8, bfloat16, (HeadNorm)2", "RoPE and norm, backward", heads,
          cost::rope_backward<bfloat16>(shape, true).bytes + table.bytes() + head_rstd.bytes());
    norms = {1e-6f, head_rstd.data(), q_weight.data(), k_weight.data(), nullptr, x.data()};
    rope(qkv.data(), norms, {table.data()}, shape, nullptr);
    state("rope_kernel<simt::Width<4, 16>, 8, bfloat16, (HeadNorm)3", "norm with weights and RoPE", heads,
          cost::rope<bfloat16>(shape, true).bytes + table.bytes() + head_rstd.bytes() + 2 * q_weight.bytes());
    const size_t sums = weighted_rope_sums(1024);
    const simt::DeviceBuffer<float> dweights(2 * 64), scratch(sums * 2 * 64);
    simt::fill_zero(dweights.data(), dweights.bytes(), nullptr);
    weighted_rope_backward(dqkv.data(), dweights.data(), dweights.data() + 64, scratch.data(), norms,
                           {table.data(), -1}, shape, nullptr);
    state("weighted_rope_backward_kernel", "norm with weights and RoPE, backward", heads,
          cost::rope_backward<bfloat16>(shape, true).bytes + table.bytes() + head_rstd.bytes() +
              2 * q_weight.bytes() + scratch.bytes());

    constexpr size_t rows = 512;
    const auto gate_up = numbers<bfloat16>(rows * 2 * H), dout = numbers<bfloat16>(rows * H);
    swiglu_forward(dout.data(), gate_up.data(), rows, H, nullptr);
    state("swiglu_forward_kernel", "SwiGLU, forward", by(rows, H), cost::swiglu<bfloat16>(rows * H).bytes);
    swiglu_backward(gate_up.data(), dout.data(), gate_up.data(), rows, H, nullptr);
    state("swiglu_backward_kernel", "SwiGLU, backward", by(rows, H),
          cost::swiglu_backward<bfloat16>(rows * H).bytes);
    relu2_forward(gate_up.data(), rows * H, nullptr);
    state("relu2_forward_kernel", "ReLU squared, forward", by(rows, H),
          cost::activation<bfloat16>(rows * H).bytes);
    relu2_backward(dout.data(), static_cast<const bfloat16*>(dout.data()),
                   static_cast<const bfloat16*>(gate_up.data()), rows * H, nullptr);
    state("relu2_backward_kernel", "ReLU squared, backward", by(rows, H),
          cost::activation_backward<bfloat16>(rows * H).bytes);
}

}  // namespace

int main() {
    try {
        simt::select_device();
        norms("layernorm", numbers<bfloat16>(C).data());
        elementwise();
        classifier();
        encoder();
        column_sums();
        attention();
        llama();
        simt::stream_synchronize(nullptr);
    } catch (const Error& error) {
        std::fprintf(stderr, "training_kernels: %s\n", error.what());
        return error.exit_code;
    }
}
