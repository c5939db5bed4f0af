// gemm_onednn.cpp: gemm.h on the CPU
//   oneDNN's matmul computes the products: one primitive for each shape, with scratch from the workspace.
//   packed_product.h computes those that are slow in oneDNN: bfloat16 on processors without fast
//   bfloat16 products (elements are widened to fp32 while they are copied), fp32 on processors without
//   AVX-512, some gradients (backward_is_slow), and Muon's products in fp32 or, if multiplies_pairs, bf16: it
//   computes half of a symmetric result, and a batch at once.
//   int8_product.h computes those of int8 weights and bf16 where that is faster.
#include <unistd.h>

#include <algorithm>
#include <map>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_unfused.h"
#include "kernels/gemm/int8_product.h"
#include "kernels/gemm/onednn_product.h"
#include "kernels/gemm/packed_product.h"
#include "system/error.h"

namespace {

// The products of gemm.h; T is the type of their operands.
template <class T>
OneDnnShape forward_shape(size_t N, size_t C, size_t OC, bool bias) {
    constexpr auto type = onednn_type<T>;
    return {.type = type, .result = type, .M = N, .N = OC, .K = C, .transposed_b = true, .bias = bias};
}
template <class T>
OneDnnShape backward_input_shape(size_t N, size_t C, size_t OC) {
    return {.type = onednn_type<T>, .result = onednn_type<T>, .M = N, .N = C, .K = OC};
}
template <class T>
OneDnnShape backward_weight_shape(size_t N, size_t C, size_t OC, bool accumulate) {
    constexpr auto type = onednn_type<T>, fp32 = onednn_type<float>;
    const float beta = accumulate ? 1 : 0;
    return {.type = type, .result = fp32, .M = OC, .N = C, .K = N, .transposed_a = true, .beta = beta};
}
template <class T>
OneDnnShape general_shape(const Gemm::Product& p, bool transposed_a, bool transposed_b) {
    return {.type = onednn_type<T>,
            .result = onednn_type<T>,
            .M = p.M,
            .N = p.N,
            .K = p.K,
            .transposed_a = transposed_a,
            .transposed_b = transposed_b,
            .alpha = p.alpha,
            .beta = p.beta,
            .fast_only = true};
}

// True if packed_product() is faster than oneDNN. In fp32 it is where oneDNN has no AVX-512, over a whole
// step. GFLOP/s of two cores of a Zen 3, oneDNN's and packed: at 256x768x768 forward 140 and 147,
// backward_input 132 and 149, backward_weight 143 and 152; at 768x128x512 143 and 135, 145 and 145, 92 and
// 145. A build for processors without multiply-adds leaves fp32 to oneDNN, which chooses its instructions
// when it runs.
template <class T>
bool packed_is_faster() {
    if constexpr (std::is_same_v<T, bfloat16>) return !onednn_multiplies_bf16_fast();
    else return simt::cpu_multiply_adds && !onednn_has(dnnl::cpu_isa::avx512_core);
}

// True if int8_product() is faster than the product of converted weights in bf16. 10^9 operations a second
// on two cores of a Zen 4, at 512x768x2304 (dev/bench/bench_matmul.cu): 655 with AVX512_VNNI, 290 without it,
// where oneDNN multiplies bf16 at 420 and packed_product() at 200. AMX, which has four times the multipliers
// of AVX512_VNNI, was not measured.
bool int8_is_faster() {
    if (simt::multiplies_int8) return !onednn_has(dnnl::cpu_isa::avx512_core_amx);
    return simt::multiplies_words && packed_is_faster<bfloat16>();
}

// True on AMD's processors from Zen 5 on: with AVX-512, and a first-level cache that holds packed_product's
// strips. A Zen 4's is smaller.
bool is_zen5() {
    static const bool is =
        simt::cpu_vector_bytes == 64 && __builtin_cpu_is("amd") &&
        sysconf(_SC_LEVEL1_DCACHE_SIZE) >= static_cast<long>(sizeof(packed_product_detail::Scratch::b));
    return is;
}

// True if packed_product.h would compute this product of bf16 as one of pairs: on AMD's processors from Zen 4
// on. Intel's with such instructions have AMX, which is faster, or were not measured. Muon's products then
// are: of the small nanochat's step on a Zen 4 they take 5.6 ms in place of oneDNN's 7.5.
bool multiplies_pairs(const OneDnnShape& s) {
    return simt::has_bf16_pairs && s.K % 2 == 0 && __builtin_cpu_is("amd");
}

// True if packed_product.h is faster for backward_input or backward_weight, though oneDNN has AVX-512 or, in
// bf16, fast products. oneDNN 2.6 is slow in three cases; GFLOP/s at N x C x OC, oneDNN's and packed:
// - It reads rows in place that fall into the same cache sets, because they are a multiple of 4096 bytes
//   apart. A core of a Xeon at 256x3072x768: backward_input 90 and 185, backward_weight 128 and 174.
// - The sums of the head's backward_input are long. Two cores of a Zen 4 at 256x768x50304: 162 and 192; but
//   at 256x128x50304 204 and 170.
// - Layers are wide. In fp32 on a Zen 5, two cores at 256x768x2304: backward_input 391 and 469,
//   backward_weight 380 and 429. The latter adds to a gradient; where it only writes one, both are as fast.
//   With 128 channels, and forward, oneDNN was up to 6 % faster; widths between were not measured. A Zen 4's
//   step took as long with either.
//   In bf16, as pairs, from Zen 4 on. With everything in caches oneDNN is as fast, but in a training step
//   weights and gradients come from memory: with pairs GPT-2 124M's takes 0.93 of the time on a Zen 5 and
//   0.96 on a Zen 4.
// The first two were measured in fp32 only.
template <class T>
bool backward_is_slow(const OneDnnShape& s) {
    const bool is_wide = s.N >= 768;
    if (s.transposed_b) return false;
    if constexpr (std::is_same_v<T, bfloat16>) return is_wide && multiplies_pairs(s);
    const bool rows_collide = s.N * sizeof(float) % 4096 == 0;
    const bool has_long_sums = !s.transposed_a && s.K > 32768;
    return rows_collide || (is_wide && (has_long_sums || is_zen5()));
}

}  // namespace

struct Gemm::State {
    bool pack_fp32, pack_slow_fp32, pack_bf16, pack_slow_bf16, multiply_int8;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    dnnl::stream stream{onednn_cpu()};
    std::map<OneDnnShape, OneDnnProduct> products;

    void* scratch(size_t wanted, const OneDnnShape& s) const {
        if (wanted > workspace_bytes) {
            throw Error(
                fmt::format("gemm: the product of a {} x {} and a {} x {} matrix wants {} bytes of workspace "
                            "and has {}: call use_workspace with Gemm::workspace_bytes",
                            s.M, s.K, s.K, s.N, wanted, workspace_bytes));
        }
        return workspace;
    }

    // oneDNN's product, or nullptr if packed_product() must multiply.
    const OneDnnProduct* find(const OneDnnShape& s) {
        auto found = products.find(s);
        if (found == products.end()) {
            const auto description = describe(s);
            if (!description && s.fast_only) return nullptr;
            if (!description) {
                throw Error(fmt::format(
                    "gemm: oneDNN has no {} product of a {} x {} and a {} x {} matrix for this machine",
                    s.type == onednn_type<bfloat16> ? "bf16" : "fp32", s.M, s.K, s.K, s.N));
            }
            found = products.emplace(s, description).first;
        }
        // A product of fewer rows may need more scratch than the workspace has (seen in bf16 with
        // C = 128, OC = 512: 944 rows need more than 1024 rows, for which the workspace was made).
        return found->second.scratch_bytes() > workspace_bytes ? nullptr : &found->second;
    }

    // dst = the product of a and b
    template <class T, class Result>
    void multiply(const OneDnnShape& s, Result* dst, const T* a, const T* b, const T* bias = nullptr) {
        constexpr bool is_bf16 = std::is_same_v<T, bfloat16>;
        const bool packs = (is_bf16 ? pack_bf16 : pack_fp32) ||
                           ((is_bf16 ? pack_slow_bf16 : pack_slow_fp32) && backward_is_slow<T>(s));
        if (const OneDnnProduct* const product = packs ? nullptr : find(s))
            product->run(stream, dst, a, b, bias, workspace);
        else multiply_packed(s, dst, a, b, bias, {.beta = s.beta, .add = dst});
    }

    // The choice between oneDNN and packed_product() must not depend on the batch: under ZeRO-1 a process has
    // fewer matrices, and their bits must be the same.
    template <class T>
    void multiply(const Product& p, T* out, Factor<T> a, Factor<T> b, const T* add) {
        const OneDnnShape s = general_shape<T>(p, a.transposed, b.transposed);
        if constexpr (std::is_same_v<T, bfloat16>) {
            const bool packs = pack_bf16 || p.alpha == 0 || (pack_slow_bf16 && multiplies_pairs(s));
            if (const OneDnnProduct* const product = packs ? nullptr : find(s)) {
                // out holds `add` when a product begins, so that the sum is rounded once.
                if (p.beta != 0) simt::copy_on_device(out, add, p.batch * p.M * p.N * sizeof(T), nullptr);
                // oneDNN multiplies one matrix after the other.
                for (size_t i = 0; i < p.batch; i++)
                    product->run(stream, out + i * p.M * p.N, a.values + i * p.M * p.K,
                                 b.values + i * p.K * p.N, nullptr, workspace);
                return;
            }
        }
        multiply_packed(s, out, a.values, b.values, static_cast<const T*>(nullptr),
                        {p.alpha, p.beta, add, p.batch, p.symmetric});
    }

    template <class T, class Result>
    void multiply_packed(const OneDnnShape& s, Result* dst, const T* a, const T* b, const T* bias,
                         const std::type_identity_t<GeneralProduct<Result>>& general) const {
        const Operand<T> op_a{a, s.transposed_a ? s.M : s.K, s.transposed_a},
            op_b{b, s.transposed_b ? s.K : s.N, s.transposed_b};
        void* const space = scratch(packed_product_scratch_bytes(), s);
        if constexpr (std::is_same_v<T, bfloat16>) {
            if (multiplies_pairs(s)) {
                packed_pairs_product(dst, op_a, op_b, bias, s.M, s.N, s.K, space, general);
                return;
            }
        }
        packed_product(dst, op_a, op_b, bias, s.M, s.N, s.K, space, general);
    }
};

Gemm::Gemm(Options options) : state_(std::make_unique<State>()) {
    CHECK(options.bf16 != OnCpu::library || describe(forward_shape<bfloat16>(16, 16, 16, false)),
          "gemm: oneDNN has no bf16 products for this processor; pack them");
    const auto packs = [](OnCpu choice, bool faster) {
        return choice == OnCpu::packed || (choice == OnCpu::automatic && faster);
    };
    state_->pack_fp32 = packs(options.fp32, packed_is_faster<float>());
    state_->pack_slow_fp32 = options.fp32 == OnCpu::automatic && simt::cpu_multiply_adds;
    state_->pack_bf16 = packs(options.bf16, packed_is_faster<bfloat16>());
    state_->pack_slow_bf16 = options.bf16 == OnCpu::automatic;
    state_->multiply_int8 = packs(options.int8, int8_is_faster());
}
Gemm::~Gemm() = default;

template <class T>
size_t Gemm::workspace_bytes(size_t N, size_t C, size_t OC) {
    size_t bytes = std::max(gemm_bias_gradient_scratch_bytes<T>(N, OC), packed_product_scratch_bytes());
    // oneDNN needs its scratch only if it multiplies. Where it would widen bf16, that scratch has the size of
    // whole matrices: 25 GB for 64 x 1024 tokens of GPT-2 124M.
    if (packed_is_faster<T>()) return bytes;
    for (const OneDnnShape& shape :
         {forward_shape<T>(N, C, OC, false), forward_shape<T>(N, C, OC, true),
          backward_input_shape<T>(N, C, OC), backward_weight_shape<T>(N, C, OC, false),
          backward_weight_shape<T>(N, C, OC, true)}) {
        if (const auto description = describe(shape))
            bytes = std::max(bytes, description.scratchpad_desc().get_size());
    }
    return bytes;
}

void Gemm::use_workspace(void* workspace, size_t bytes) {
    state_->workspace = workspace;
    state_->workspace_bytes = bytes;
}

// Activations are kernels of our own here: none is fused.
template <class T>
void Gemm::forward(T* out, const T* inp, const T* weight, const T* bias, size_t N, size_t C, size_t OC,
                   stream_t stream, Activation activation, T* pre_activation) {
    const bool activates = activation != Activation::none;
    state_->multiply(forward_shape<T>(N, C, OC, bias != nullptr), activates ? pre_activation : out, inp,
                     weight, bias);
    if (activates) gemm_activation_forward(activation, out, pre_activation, N * OC, stream);
}

template <class T>
size_t Gemm::int8_scratch_bytes(size_t N, size_t C, size_t OC) {
    const size_t converted = OC * C * sizeof(T);
    return std::is_same_v<T, float> ? converted : std::max(converted, int8_product_scratch_bytes(N, C));
}

template <class T>
void Gemm::forward_int8(T* out, const T* inp, Int8Weight weight, const T* bias, size_t N, size_t C, size_t OC,
                        std::span<std::byte> scratch, stream_t stream, Activation activation,
                        T* pre_activation) {
    CHECK(scratch.size() >= int8_scratch_bytes<T>(N, C, OC),
          "gemm: N = {}, C = {}, OC = {} wants {} bytes of scratch for int8 and has {}", N, C, OC,
          int8_scratch_bytes<T>(N, C, OC), scratch.size());
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (state_->multiply_int8) {
            const bool activates = activation != Activation::none;
            int8_product(activates ? pre_activation : out, inp, weight.values, weight.scales, bias, N, C, OC,
                         scratch.data());
            if (activates) gemm_activation_forward(activation, out, pre_activation, N * OC, stream);
            return;
        }
    }
    T* const converted = reinterpret_cast<T*>(scratch.data());
    gemm_dequantize(converted, weight.values, weight.scales, OC, C, stream);
    forward(out, inp, converted, bias, N, C, OC, stream, activation, pre_activation);
}

template <class T>
void Gemm::backward_input(T* dinp, const T* dout, const T* weight, size_t N, size_t C, size_t OC,
                          stream_t stream, Activation activation, const T* pre_activation) {
    state_->multiply(backward_input_shape<T>(N, C, OC), dinp, dout, weight);
    if (activation != Activation::none)
        gemm_activation_backward(activation, dinp, dinp, pre_activation, N * C, stream);
}

template <class T>
void Gemm::backward_weight(float* dweight, float* dbias, const T* dout, const T* inp, size_t N, size_t C,
                           size_t OC, bool accumulate, stream_t stream) {
    const OneDnnShape shape = backward_weight_shape<T>(N, C, OC, accumulate);
    state_->multiply(shape, dweight, dout, inp);
    if (dbias)
        gemm_bias_gradient(dbias, dout, N, OC,
                           state_->scratch(gemm_bias_gradient_scratch_bytes<T>(N, OC), shape), stream);
}

template <class T>
void Gemm::product(const Product& shape, T* out, Factor<T> a, Factor<T> b, stream_t, const T* add) {
    state_->multiply(shape, out, a, b, add);
}

template <class T>
size_t Gemm::product_workspace_bytes(size_t M, size_t N, size_t K) {
    size_t bytes = packed_product_scratch_bytes();
    if (std::is_same_v<T, float> || packed_is_faster<T>()) return bytes;
    for (const bool transposed_a : {false, true}) {
        for (const bool transposed_b : {false, true}) {
            for (const float factor : {0.0f, 2.0f}) {
                if (const auto description =
                        describe(general_shape<T>({M, N, K, 1 + factor, factor}, transposed_a, transposed_b)))
                    bytes = std::max(bytes, description.scratchpad_desc().get_size());
            }
        }
    }
    return bytes;
}

std::string Gemm::tune(const std::function<void()>&, double) { return ""; }
std::string Gemm::choices(bool) const { return ""; }
std::string Gemm::adopt(const std::string&) { return ""; }
std::vector<std::string> Gemm::chosen_algorithms() const { return {}; }

#define INSTANTIATE(T) \
    template size_t Gemm::workspace_bytes<T>(size_t, size_t, size_t); \
    template void Gemm::forward_int8(T*, const T*, Int8Weight, const T*, size_t, size_t, size_t, \
                                     std::span<std::byte>, stream_t, Activation, T*); \
    template size_t Gemm::int8_scratch_bytes<T>(size_t, size_t, size_t); \
    template void Gemm::forward(T*, const T*, const T*, const T*, size_t, size_t, size_t, stream_t, \
                                Activation, T*); \
    template void Gemm::backward_input(T*, const T*, const T*, size_t, size_t, size_t, stream_t, Activation, \
                                       const T*); \
    template void Gemm::backward_weight(float*, float*, const T*, const T*, size_t, size_t, size_t, bool, \
                                        stream_t); \
    template void Gemm::product(const Product&, T*, Factor<T>, Factor<T>, stream_t, const T*); \
    template size_t Gemm::product_workspace_bytes<T>(size_t, size_t, size_t);
INSTANTIATE(float)
INSTANTIATE(bfloat16)
