// onednn_compat.h: one description of a oneDNN matrix product for 2.6 (Debian 12) and 3.x (Ubuntu
//   24.04), whose C++ interfaces differ
#pragma once
#include <dnnl.hpp>

// dst = src weights + bias; an empty bias descriptor means no bias. The result is empty if this machine
// cannot compute it.
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
