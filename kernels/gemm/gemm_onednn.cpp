// gemm_onednn.cpp: gemm.h on the CPU
//   oneDNN's matmul computes the products: one primitive for each form and shape, with scratch from the
//   workspace.
//   packed_product.h computes those that are slow in oneDNN: bfloat16 on processors without fast
//   bfloat16 products (elements are widened to fp32 while they are copied), fp32 on processors without
//   AVX-512, with rows of a multiple of 4096 bytes or with long sums, and Muon's fp32 products: it computes
//   half of a symmetric result, and a batch at once.
//   int8_product.h computes those of int8 weights and bf16 where that is faster.
#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_unfused.h"
#include "kernels/gemm/int8_product.h"
#include "kernels/gemm/onednn_product.h"
#include "kernels/gemm/packed_product.h"
#include "system/error.h"

namespace {

enum class Form { forward, forward_bias, backward_input, backward_weight, backward_weight_add };
constexpr Form all_forms[] = {Form::forward, Form::forward_bias, Form::backward_input, Form::backward_weight,
                              Form::backward_weight_add};

struct Shape {
    size_t N, C, OC;
    auto operator<=>(const Shape&) const = default;
};

template <class T>
constexpr const char* name_of = "fp32";
template <>
constexpr const char* name_of<bfloat16> = "bf16";

// The result is empty if oneDNN cannot compute it on this machine.
template <class T>
dnnl::matmul::primitive_desc describe(Form form, const Shape& s) {
    const auto type = onednn_type<T>, fp32 = dnnl::memory::data_type::f32;
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (form == Form::backward_weight_add) {
        dnnl::post_ops add;
        add.append_sum(1.0f);
        attributes.set_post_ops(add);
    }
    const dnnl::memory::desc bias =
        form == Form::forward_bias ? onednn_matrix(1, s.OC, type) : dnnl::memory::desc();
    const auto multiply = [&](const auto& src, const auto& weights, const auto& dst) {
        return onednn_matmul(onednn_cpu(), src, weights, bias, dst, attributes);
    };
    switch (form) {
        case Form::forward:
        case Form::forward_bias:
            return multiply(onednn_matrix(s.N, s.C, type), onednn_matrix(s.C, s.OC, type, true),
                            onednn_matrix(s.N, s.OC, type));
        case Form::backward_input:
            return multiply(onednn_matrix(s.N, s.OC, type), onednn_matrix(s.OC, s.C, type),
                            onednn_matrix(s.N, s.C, type));
        default:
            return multiply(onednn_matrix(s.OC, s.N, type, true), onednn_matrix(s.N, s.C, type),
                            onednn_matrix(s.OC, s.C, fp32));
    }
}

// A product of the general form, in bfloat16.
struct GeneralShape {
    size_t M, N, K;
    bool transposed_a, transposed_b;
    float alpha, beta;
    auto operator<=>(const GeneralShape&) const = default;
};

// dst holds `add` when the product begins, so that the sum is rounded once. The result is empty if oneDNN
// would use its reference loop, which takes hundreds of times as long as a product.
dnnl::matmul::primitive_desc describe(const GeneralShape& s) {
    constexpr auto type = onednn_type<bfloat16>;
    // alpha (product + beta / alpha add): for a factor before the sum, oneDNN 2.6 only has that loop.
    dnnl::post_ops operations;
    if (s.beta != 0) operations.append_sum(s.beta / s.alpha);
    if (s.alpha != 1) onednn_append_factor(operations, s.alpha);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(operations);
    auto description = onednn_matmul(onednn_cpu(), onednn_matrix(s.M, s.K, type, s.transposed_a),
                                     onednn_matrix(s.K, s.N, type, s.transposed_b), dnnl::memory::desc(),
                                     onednn_matrix(s.M, s.N, type), attributes);
    if (description && std::string_view(description.impl_info_str()).starts_with("ref")) return {};
    return description;
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

// Rows of weight and dweight that are a multiple of 4096 bytes apart fall into the same cache sets, and
// oneDNN 2.6 reads them in place. Measured per core at 256x3072x768: backward_input 90 GFLOP/s, packed
// 185; backward_weight 128, packed 174.
bool rows_collide(Form form, const Shape& s) {
    return form != Form::forward && form != Form::forward_bias && s.C * sizeof(float) % 4096 == 0;
}

// The head's backward_input has the longest sums. In fp32, GFLOP/s of two cores of a Zen 4, oneDNN's and
// packed: at 256x768x50304 162 and 192, at 256x1600x50304 160 and 175; but at 256x128x50304 204 and 170.
bool has_long_sums(Form form, const Shape& s) {
    return form == Form::backward_input && s.OC > 32768 && s.C >= 768;
}

}  // namespace

struct Gemm::State {
    bool pack_fp32, pack_bf16, multiply_int8;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
    dnnl::stream stream{onednn_cpu()};
    std::map<std::tuple<Form, dnnl::memory::data_type, Shape>, OneDnnProduct> products;
    std::map<GeneralShape, OneDnnProduct> general_products;

    void* scratch(size_t wanted, const Shape& s) const {
        if (wanted > workspace_bytes) {
            throw Error(
                fmt::format("gemm: N = {}, C = {}, OC = {} wants {} bytes of workspace and has {}: call "
                            "use_workspace with Gemm::workspace_bytes",
                            s.N, s.C, s.OC, wanted, workspace_bytes));
        }
        return workspace;
    }

    // dst = the form's product of a and b
    template <class T, class Result>
    void multiply(Form form, Result* dst, const T* a, const T* b, const T* bias, const Shape& s) {
        if (std::is_same_v<T, bfloat16> ? pack_bf16
                                        : pack_fp32 || rows_collide(form, s) || has_long_sums(form, s))
            return multiply_packed(form, dst, a, b, bias, s);
        const std::tuple key(form, onednn_type<T>, s);
        auto found = products.find(key);
        if (found == products.end()) {
            const auto description = describe<T>(form, s);
            if (!description)
                throw Error(
                    fmt::format("gemm: oneDNN has no {} product of N = {}, C = {}, OC = {} for this machine",
                                name_of<T>, s.N, s.C, s.OC));
            found = products.emplace(key, description).first;
        }
        const OneDnnProduct& product = found->second;
        // A product of fewer rows may need more scratch than the workspace has (seen in bf16 with
        // C = 128, OC = 512: 944 rows need more than 1024 rows, for which the workspace was made).
        if (product.scratch_bytes() > workspace_bytes) return multiply_packed(form, dst, a, b, bias, s);
        product.run(stream, dst, a, b, bias, scratch(product.scratch_bytes(), s));
    }

    // The choice between oneDNN and packed_product() must not depend on the batch: under ZeRO-1 a process has
    // fewer matrices, and their bits must be the same.
    template <class T>
    void multiply(const Product& p, T* out, Factor<T> a, Factor<T> b, const T* add) {
        if constexpr (std::is_same_v<T, bfloat16>) {
            if (!pack_bf16 && multiply_bf16(p, out, a, b, add)) return;
        }
        const GeneralProduct<T> general{p.alpha, p.beta, add, p.batch, p.symmetric};
        packed_product(out, {a.values, a.transposed ? p.M : p.K, a.transposed},
                       {b.values, b.transposed ? p.K : p.N, b.transposed}, static_cast<const T*>(nullptr),
                       p.M, p.N, p.K, false, scratch(packed_product_scratch_bytes(), {p.M, p.K, p.N}),
                       &general);
    }

    // oneDNN multiplies one matrix after the other. Returns false, and computes nothing, if it has no fast
    // product.
    bool multiply_bf16(const Product& p, bfloat16* out, Factor<bfloat16> a, Factor<bfloat16> b,
                       const bfloat16* add) {
        if (p.alpha == 0) return false;
        const GeneralShape shape{p.M, p.N, p.K, a.transposed, b.transposed, p.alpha, p.beta};
        auto found = general_products.find(shape);
        if (found == general_products.end()) {
            const auto description = describe(shape);
            if (!description) return false;
            found = general_products.emplace(shape, description).first;
        }
        const OneDnnProduct& product = found->second;
        if (product.scratch_bytes() > workspace_bytes) return false;
        if (p.beta != 0) simt::copy_on_device(out, add, p.batch * p.M * p.N * sizeof(bfloat16), nullptr);
        for (size_t i = 0; i < p.batch; i++)
            product.run(stream, out + i * p.M * p.N, a.values + i * p.M * p.K, b.values + i * p.K * p.N,
                        nullptr, workspace);
        return true;
    }

    template <class T, class Result>
    void multiply_packed(Form form, Result* dst, const T* a, const T* b, const T* bias,
                         const Shape& s) const {
        void* const own = scratch(packed_product_scratch_bytes(), s);
        switch (form) {
            case Form::forward:
            case Form::forward_bias:
                return packed_product(dst, {a, s.C, false}, {b, s.C, true}, bias, s.N, s.OC, s.C, false, own);
            case Form::backward_input:
                return packed_product(dst, {a, s.OC, false}, {b, s.C, false}, bias, s.N, s.C, s.OC, false,
                                      own);
            default:
                return packed_product(dst, {a, s.OC, true}, {b, s.C, false}, bias, s.OC, s.C, s.N,
                                      form == Form::backward_weight_add, own);
        }
    }
};

Gemm::Gemm(Options options) : state_(std::make_unique<State>()) {
    CHECK(options.bf16 != OnCpu::library || describe<bfloat16>(Form::forward, {16, 16, 16}),
          "gemm: oneDNN has no bf16 products for this processor; pack them");
    const auto packs = [](OnCpu choice, bool faster) {
        return choice == OnCpu::packed || (choice == OnCpu::automatic && faster);
    };
    state_->pack_fp32 = packs(options.fp32, packed_is_faster<float>());
    state_->pack_bf16 = packs(options.bf16, packed_is_faster<bfloat16>());
    state_->multiply_int8 = packs(options.int8, int8_is_faster());
}
Gemm::~Gemm() = default;

template <class T>
size_t Gemm::workspace_bytes(size_t N, size_t C, size_t OC) {
    size_t bytes = std::max(gemm_bias_gradient_scratch_bytes<T>(N, OC), packed_product_scratch_bytes());
    // oneDNN needs its scratch only if it multiplies. Where it would widen bf16, that scratch has the size of
    // whole matrices: 25 GB for 64 x 1024 tokens of GPT-2 124M.
    if (packed_is_faster<T>()) return bytes;
    for (const Form form : all_forms) {
        if (const auto description = describe<T>(form, {N, C, OC}))
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
    state_->multiply(bias ? Form::forward_bias : Form::forward, activates ? pre_activation : out, inp, weight,
                     bias, {N, C, OC});
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
    state_->multiply<T>(Form::backward_input, dinp, dout, weight, nullptr, {N, C, OC});
    if (activation != Activation::none)
        gemm_activation_backward(activation, dinp, dinp, pre_activation, N * C, stream);
}

template <class T>
void Gemm::backward_weight(float* dweight, float* dbias, const T* dout, const T* inp, size_t N, size_t C,
                           size_t OC, bool accumulate, stream_t stream) {
    const Shape shape{N, C, OC};
    state_->multiply<T>(accumulate ? Form::backward_weight_add : Form::backward_weight, dweight, dout, inp,
                        nullptr, shape);
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
                        describe({M, N, K, transposed_a, transposed_b, 1 + factor, factor}))
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
