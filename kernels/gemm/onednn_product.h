// onednn_product.h: a oneDNN matrix product with all that a call needs. It is made once for a shape, so
//   that calls allocate nothing of ours.
#pragma once
#include <dnnl.hpp>
#include <string_view>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "system/error.h"

template <class T>
constexpr auto onednn_type = dnnl::memory::data_type::f32;
template <>
inline constexpr auto onednn_type<bfloat16> = dnnl::memory::data_type::bf16;

inline const dnnl::engine& onednn_cpu() {
    static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    return engine;
}

// A (rows, columns) matrix that lies in memory row by row or, if transposed, column by column.
inline dnnl::memory::desc onednn_matrix(size_t rows, size_t columns, dnnl::memory::data_type type,
                                        bool transposed = false) {
    const auto r = static_cast<dnnl::memory::dim>(rows), c = static_cast<dnnl::memory::dim>(columns);
    return dnnl::memory::desc({r, c}, type, transposed ? dnnl::memory::dims{1, r} : dnnl::memory::dims{c, 1});
}

// True if oneDNN may use this instruction set.
inline bool onednn_has(dnnl::cpu_isa wanted) {
    const auto bits = static_cast<unsigned>(wanted);  // they include those of its subsets
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

// True if oneDNN multiplies bfloat16 faster than fp32. Measured per core at 256x768x768: an Intel processor
// with AVX512_BF16 but no AMX multiplies bfloat16 at 105 GFLOP/s and fp32 at 200; an AMD one multiplies
// bfloat16 at 450 and fp32 at 215. Without either instruction set, oneDNN emulates bfloat16 or refuses it.
inline bool onednn_multiplies_bf16_fast() {
    return onednn_has(dnnl::cpu_isa::avx512_core_amx) ||
           (onednn_has(dnnl::cpu_isa::avx512_core_bf16) && __builtin_cpu_is("amd"));
}

// The post-op x -> factor * x; its interface differs between the versions too.
template <class PostOps = dnnl::post_ops>
void onednn_append_factor(PostOps& operations, float factor) {
    constexpr auto linear = dnnl::algorithm::eltwise_linear;
    if constexpr (requires { operations.append_eltwise(1.0f, linear, factor, 0.0f); })
        operations.append_eltwise(1.0f, linear, factor, 0.0f);
    else operations.append_eltwise(linear, factor, 0.0f);
}

// One description of dst = src weights + bias for oneDNN 2.6 (Debian 12) and 3.x (Ubuntu 24.04), whose C++
// interfaces differ. An empty bias descriptor means no bias. The result is empty if this machine cannot
// compute it.
template <class Matmul = dnnl::matmul>
typename Matmul::primitive_desc onednn_matmul(const dnnl::engine& engine, const dnnl::memory::desc& src,
                                              const dnnl::memory::desc& weights,
                                              const dnnl::memory::desc& bias, const dnnl::memory::desc& dst,
                                              const dnnl::primitive_attr& attributes) {
    using Primitive = typename Matmul::primitive_desc;
    if constexpr (requires { typename Matmul::desc; }) {  // 2.x describes the operation first
        using Operation = typename Matmul::desc;
        return Primitive(
            bias.get_size() > 0 ? Operation(src, weights, bias, dst) : Operation(src, weights, dst),
            attributes, engine, true);
    } else {
        return bias.get_size() > 0 ? Primitive(engine, src, weights, bias, dst, attributes, true)
                                   : Primitive(engine, src, weights, dst, attributes, true);
    }
}

// dst (M, N) = alpha (op(src) (M, K) op(weights) (K, N) + bias (N)) + beta dst, rounded once
struct OneDnnShape {
    dnnl::memory::data_type type, result;  // of src, weights and bias; of dst
    size_t M, N, K;
    bool transposed_a = false, transposed_b = false;  // op transposes what lies in memory
    bool bias = false;
    float alpha = 1, beta = 0;
    // Refuses oneDNN's reference loop, which takes hundreds of times as long as its other products.
    bool fast_only = false;
    auto operator<=>(const OneDnnShape&) const = default;
};

// The result is empty if oneDNN cannot compute it on this machine.
inline dnnl::matmul::primitive_desc describe(const OneDnnShape& s) {
    // alpha (product + beta / alpha dst): oneDNN 2.6 has a factor before the sum in its reference loop only.
    dnnl::post_ops operations;
    if (s.beta != 0) operations.append_sum(s.beta / s.alpha);
    if (s.alpha != 1) onednn_append_factor(operations, s.alpha);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(operations);
    auto description = onednn_matmul(onednn_cpu(), onednn_matrix(s.M, s.K, s.type, s.transposed_a),
                                     onednn_matrix(s.K, s.N, s.type, s.transposed_b),
                                     s.bias ? onednn_matrix(1, s.N, s.type) : dnnl::memory::desc(),
                                     onednn_matrix(s.M, s.N, s.result), attributes);
    if (s.fast_only && description && std::string_view(description.impl_info_str()).starts_with("ref"))
        return {};
    return description;
}

// The product that a description describes, for any matrices of its shape.
class OneDnnProduct {
public:
    explicit OneDnnProduct(const dnnl::matmul::primitive_desc& description)
        : scratch_bytes_(description.scratchpad_desc().get_size()),
          product_(description),
          src_(description.src_desc(), onednn_cpu(), nullptr),
          weights_(description.weights_desc(), onednn_cpu(), nullptr),
          dst_(description.dst_desc(), onednn_cpu(), nullptr),
          scratch_(description.scratchpad_desc(), onednn_cpu(), nullptr) {
        arguments_ = {{DNNL_ARG_SRC, src_.get()},
                      {DNNL_ARG_WEIGHTS, weights_.get()},
                      {DNNL_ARG_DST, dst_.get()},
                      {DNNL_ARG_SCRATCHPAD, scratch_.get()}};
        const dnnl::memory::desc bias = description.bias_desc();
        if (bias.get_size() > 0) {
            bias_ = dnnl::memory(bias, onednn_cpu(), nullptr);
            arguments_.push_back({DNNL_ARG_BIAS, bias_.get()});
        }
    }
    size_t scratch_bytes() const { return scratch_bytes_; }

    // Uses the C interface, because the C++ one builds a table of the arguments on the heap in every call.
    void run(const dnnl::stream& stream, void* dst, const void* src, const void* weights, const void* bias,
             void* scratch) const {
        src_.set_data_handle(const_cast<void*>(src));
        weights_.set_data_handle(const_cast<void*>(weights));
        dst_.set_data_handle(dst);
        scratch_.set_data_handle(scratch);
        if (bias) bias_.set_data_handle(const_cast<void*>(bias));
        const dnnl_status_t status = dnnl_primitive_execute(
            product_.get(), stream.get(), static_cast<int>(arguments_.size()), arguments_.data());
        if (status != dnnl_success)
            throw Error(
                fmt::format("oneDNN's matrix product failed with status {}", static_cast<int>(status)));
    }

private:
    size_t scratch_bytes_;
    dnnl::matmul product_;
    dnnl::memory src_, weights_, dst_, scratch_, bias_;
    std::vector<dnnl_exec_arg_t> arguments_;
};
