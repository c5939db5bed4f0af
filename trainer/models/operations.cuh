// operations.cuh: each operation with its kernel, parameters, sizes, and its name and cost for --profile
#pragma once
#include "kernels/encoder.cuh"
#include "kernels/gelu.cuh"
#include "kernels/layernorm.cuh"
#include "trainer/models/operations.h"

template <class T>
void Operations<T>::reserve_scratch(Arena& workspace, size_t norm_sums) {
    attention_ = std::make_unique<Attention>(options().attention, options().deterministic);
    const AttentionShape shape = attention_shape(options().B, options().T);
    workspace.reserve(attention_scratch_, attention_->workspace_bytes<T>(shape, options().training));
    if (this->generation_) reserve_cache(workspace);
    if (options().training)
        workspace.reserve(norm_scratch_, layernorm_backward_scratch(most_rows(), config_.C, norm_sums));
}

template <class T>
void Operations<T>::reserve_rows(Arena& activations, const char* name, int l, T*& tensor, size_t channels) {
    activations.reserve(tensor, most_rows() * channels);
    named_[{name, l}] = {&tensor, channels};
}

template <class T>
void Operations<T>::reserve_norm(Arena& activations, const char* name, int l, Normalised<T>& norm,
                                 bool has_mean) {
    reserve_rows(activations, name, l, norm.out, channels());
    if (has_mean) activations.reserve(norm.mean, most_rows());
    activations.reserve(norm.rstd, most_rows());
}

template <class T>
typename Family<T>::Activation Operations<T>::activation(const std::string& name, int l) const {
    const auto found = named_.find({name, l});
    if (found == named_.end()) throw Error(fmt::format("block {} keeps no activation called {}", l, name));
    return {*found->second.first, rows() * found->second.second};
}

template <class T>
void Operations<T>::encoder(T* out, TensorId wte, TensorId wpe) {
    if (this->generates()) return generate_embedding(out, wte, wpe);
    const T *const tokens = param(wte), *const positions = param_or_none(wpe);
    operation("encoder", cost::encoder<T>(rows(), channels()));
    encoder_forward(out, this->context_->inputs(), tokens, positions, this->context_->B, this->context_->T,
                    config_.C, stream());
}

template <class T>
void Operations<T>::encoder_backward(TensorId wte, TensorId wpe, const T* dout) {
    const Context& batch = *this->context_;
    operation("encoder backward", cost::encoder<T>(rows(), channels()));
    ::encoder_backward(grad(wte), grad_or_none(wpe), dout, batch.inputs(), batch.order(), batch.B, batch.T,
                       config_.C, stream());
}

template <class T>
void Operations<T>::matmul(const char* name, T* out, const T* inp, const Affine& p, Activation activation,
                           T* pre_activation) {
    if (this->generates()) return generate_product(name, out, inp, p, activation, pre_activation);
    const auto [OC, C] = sizes(p.weight);
    const T *const weight = param(p.weight), *const bias = param_or_none(p.bias);
    operation(name, cost::matmul<T>(rows(), C, OC, 0, pre_activation ? 1 : 0));
    gemm().forward(out, inp, weight, bias, rows(), C, OC, stream(), activation, pre_activation);
}

template <class T>
void Operations<T>::matmul_dweight(const char* name, TensorId weight, const T* dout, const T* inp) {
    matmul_dweight_dbias(name, {weight}, dout, inp);
}

template <class T>
void Operations<T>::matmul_dweight_dbias(const char* name, const Affine& p, const T* dout, const T* inp) {
    const auto [OC, C] = sizes(p.weight);
    const bool accumulate = this->context_->accumulates();
    operation(name, cost::matmul_weight<T>(rows(), C, OC, accumulate));
    gemm().backward_weight(grad(p.weight), grad_or_none(p.bias), dout, inp, rows(), C, OC, accumulate,
                           stream());
}

template <class T>
void Operations<T>::matmul_dinput(const char* name, T* dinp, const T* dout, TensorId weight,
                                  Activation activation, const T* pre_activation) {
    const auto [OC, C] = sizes(weight);
    operation(name, cost::matmul<T>(rows(), C, OC, pre_activation ? 1 : 0));
    gemm().backward_input(dinp, dout, param(weight), rows(), C, OC, stream(), activation, pre_activation);
}

template <class T>
void Operations<T>::gelu(const char* name, T* out, const T* pre_gelu, size_t channels) {
    operation(name, cost::activation<T>(rows() * channels));
    gelu_forward(out, pre_gelu, rows() * channels, stream());
}

template <class T>
void Operations<T>::attention(T* out, float* lse, const T* qkv, int l) {
    if (this->generates()) return generate_attention(out, lse, qkv, l);
    operation("attention", cost::attention_forward<T>(shape()));
    attention_->forward(out, lse, qkv, shape(), attention_scratch_, stream());
}

template <class T>
void Operations<T>::attention_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse) {
    operation("attention backward", cost::attention_backward<T>(shape()));
    attention_->backward(dqkv, dout, qkv, out, lse, shape(), attention_scratch_, stream());
}

template <class T>
void Operations<T>::residual_norm(const Normalised<T>& to, T* sum, const T* inp, const T* branch,
                                  const Affine& p) {
    const T* const weight = p.weight == no_tensor ? ones_ : param(p.weight);
    const T* const bias = param_or_none(p.bias);
    if (branch)
        operation(bias ? "residual + layernorm" : "residual + rmsnorm",
                  cost::residual_layernorm<T>(rows(), channels()));
    else operation(bias ? "layernorm" : "rmsnorm", cost::layernorm<T>(rows(), channels()));
    layernorm_forward(to.out, sum, to.mean, to.rstd, inp, branch, weight, bias, eps(), rows(), config_.C,
                      stream());
}

template <class T>
void Operations<T>::norm_backward(T* dresidual, const T* dout, const T* inp, const Normalised<T>& kept,
                                  const Affine& p, float* dsum, bool residual) {
    float* const dbias = grad_or_none(p.bias);
    operation(dbias ? "layernorm backward" : "rmsnorm backward",
              cost::layernorm_backward<T>(rows(), channels(), residual));
    const bool weighted = p.weight != no_tensor;
    layernorm_backward(dresidual, weighted ? grad(p.weight) : dones_, dbias, dsum, norm_scratch_,
                       residual ? dresidual : static_cast<const T*>(nullptr), dout, inp,
                       weighted ? param(p.weight) : ones_, kept.mean, kept.rstd, rows(), config_.C, stream());
}
