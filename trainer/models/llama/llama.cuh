// llama.cuh: Llama, one operation a line. A block's forward and backward stand one above the other.
#pragma once
#include <algorithm>

#include "kernels/attention/rope.cuh"
#include "kernels/rmsnorm.cuh"
#include "kernels/swiglu.cuh"
#include "trainer/models/llama/llama.h"

// again: backward recomputes the block (--recompute block), up to the last activation that it needs.
template <class T>
void Llama<T>::block_forward(int l, bool again) {
    const auto& p = layer(l);
    Block& a = block(l);
    // In forward, norm1 has been computed already: by the kernel that ends the previous block, or for block
    // 0 by embed().
    if (again) rmsnorm("rmsnorm again", a.norm1, block_input(l), p.norm1);
    matmul("qkv", a.qkv, a.norm1.out, p.qkv);
    rope(a.qkv);
    attention(a.att, a.lse, a.qkv, l);
    matmul("attproj", work_.branch, a.att, p.attproj);
    residual_rmsnorm(a.norm2, a.residual2, block_input(l), work_.branch, p.norm2);
    matmul("gate and up", a.gate_up, a.norm2.out, p.gate_up);
    swiglu("SwiGLU", a.act, a.gate_up);
    if (again) return;
    matmul("down", work_.branch, a.act, p.down);
    // The residual sum that ends this block is normalised in the same kernel, for the next block or for
    // the head.
    residual_rmsnorm(is_last(l) ? norm_ : block(l + 1).norm1, a.residual3, a.residual2, work_.branch,
                     is_last(l) ? p_.norm : layer(l + 1).norm1);
}

// dresidual holds the gradient of the block's output; it becomes the gradient of the block's input.
template <class T>
void Llama<T>::block_backward(int l) {
    const auto& p = layer(l);
    Block& a = block(l);
    T *const dresidual = work_.dresidual, *const dnarrow = work_.dnarrow, *const dmiddle = work_.dmiddle,
             *const dwide = work_.dwide;
    if (options().recompute == Recompute::block) block_forward(l, true);
    if (options().recompute == Recompute::activation) swiglu("SwiGLU again", a.act, a.gate_up);
    matmul_dweight("down dW", p.down.weight, dresidual, a.act);
    matmul_dinput("down dX", dmiddle, dresidual, p.down.weight);
    swiglu_backward(dwide, dmiddle, a.gate_up);
    matmul_dweight("gate and up dW", p.gate_up.weight, dwide, a.norm2.out);
    matmul_dinput("gate and up dX", dnarrow, dwide, p.gate_up.weight);
    rmsnorm_backward(dresidual, dnarrow, a.residual2, a.norm2, p.norm2);
    matmul_dweight("attproj dW", p.attproj.weight, dresidual, a.att);
    matmul_dinput("attproj dX", dmiddle, dresidual, p.attproj.weight);
    attention_backward(dwide, dmiddle, a.qkv, a.att, a.lse);
    rope_backward(dwide);
    matmul_dweight("qkv dW", p.qkv.weight, dwide, a.norm1.out);
    matmul_dinput("qkv dX", dnarrow, dwide, p.qkv.weight);
    rmsnorm_backward(dresidual, dnarrow, block_input(l), a.norm1, p.norm1);
}

template <class T>
void Llama<T>::embed() {
    encoder(encoded_, p_.wte, no_tensor);
    rmsnorm("rmsnorm", block(0).norm1, encoded_, layer(0).norm1);
}

// The residual stream ends in the final norm, so dresidual is written, not added to.
template <class T>
void Llama<T>::head_norm_backward() {
    rmsnorm_backward(work_.dresidual, work_.dnarrow, block(this->config().L - 1).residual3, norm_, p_.norm,
                     false);
}

// A tied wte is also the head: the head's product has overwritten or added to its gradient, and this adds
// more. An untied one has been set to zero.
template <class T>
void Llama<T>::embed_backward() {
    encoder_backward(p_.wte, no_tensor, work_.dresidual);
}

// ----------------------------------------------------------------------------------------------------
// operations

template <class T>
void Llama<T>::rmsnorm(const char* name, const Norm& to, const T* inp, const Affine& p) {
    const T* const weight = param(p.weight);
    operation(name, cost::layernorm<T>(rows(), channels()));
    rmsnorm_forward(to.out, to.rstd, inp, weight, eps(), rows(), this->config().C, stream());
}

template <class T>
void Llama<T>::residual_rmsnorm(const Norm& to, T* sum, const T* inp, const T* branch, const Affine& p) {
    const T* const weight = param(p.weight);
    operation("residual + rmsnorm", cost::residual_layernorm<T>(rows(), channels()));
    residual_rmsnorm_forward(to.out, sum, to.rstd, inp, branch, weight, eps(), rows(), this->config().C,
                             stream());
}

template <class T>
void Llama<T>::rmsnorm_backward(T* dresidual, const T* dout, const T* inp, const Norm& kept, const Affine& p,
                                bool residual) {
    operation("rmsnorm backward", cost::layernorm_backward<T>(rows(), channels(), residual));
    ::rmsnorm_backward(dresidual, grad(p.weight), this->norm_scratch_,
                       residual ? dresidual : static_cast<const T*>(nullptr), dout, inp, param(p.weight),
                       kept.rstd, rows(), this->config().C, stream());
}

// In generation a token of each sample follows those in the cache, which holds turned keys.
template <class T>
void Llama<T>::rope(T* qkv) {
    operation("RoPE", cost::rope<T>(shape()));
    rope_forward(qkv, rotations_, this->generates() ? this->generation_->before : nullptr, shape(), stream());
}

template <class T>
void Llama<T>::rope_backward(T* dqkv) {
    operation("RoPE backward", cost::rope<T>(shape()));
    ::rope_backward(dqkv, rotations_, shape(), stream());
}

template <class T>
void Llama<T>::swiglu(const char* name, T* act, const T* gate_up) {
    operation(name, cost::swiglu<T>(rows() * H()));
    swiglu_forward(act, gate_up, rows(), this->config().H, stream());
}

template <class T>
void Llama<T>::swiglu_backward(T* dgate_up, const T* dact, const T* gate_up) {
    operation("SwiGLU backward", cost::swiglu_backward<T>(rows() * H()));
    ::swiglu_backward(dgate_up, dact, gate_up, rows(), this->config().H, stream());
}

// ----------------------------------------------------------------------------------------------------
// buffers

template <class T>
TensorTable Llama<T>::make_table(const TableLayout& layout) {
    TensorTable table(this->config().L, layout);
    p_ = add_llama(table, this->config());
    return table;
}

template <class T>
void Llama<T>::reserve(Arena& activations, Arena& workspace) {
    const size_t N = most_rows(), C = channels();
    const bool keep_block = options().training && options().recompute != Recompute::block;
    const bool keep_act = keep_block && options().recompute != Recompute::activation;
    const auto reserve_norm = [&](Norm& norm) {
        activations.reserve(norm.out, N * C);
        activations.reserve(norm.rstd, N);
    };
    activations.reserve(encoded_, N * C);
    activations.reserve(rotations_,
                        static_cast<size_t>(options().T) * static_cast<size_t>(this->config().HS()));
    for (int l = 0; l < this->config().L; l++) {
        Block& a = block(l);
        // Activations that backward does not need exist only once, in block 0; allocated() points the other
        // blocks to them.
        if (keep_block || l == 0) {
            reserve_norm(a.norm1);
            reserve_norm(a.norm2);
            activations.reserve(a.qkv, N * packed());
            activations.reserve(a.att, N * A());
            activations.reserve(a.residual2, N * C);
            activations.reserve(a.gate_up, N * 2 * H());
            activations.reserve(a.lse, N * static_cast<size_t>(this->config().NH));
        }
        if (keep_act || l == 0) activations.reserve(a.act, N * H());
        if (options().training || l < 2) activations.reserve(a.residual3, N * C);
    }
    reserve_norm(norm_);

    workspace.reserve(work_.branch, N * C);
    this->reserve_scratch(workspace);
    if (!options().training) return;
    for (T** tensor : {&work_.dresidual, &work_.dnarrow}) workspace.reserve(*tensor, N * C);
    workspace.reserve(work_.dmiddle, N * std::max(H(), A()));
    workspace.reserve(work_.dwide, N * std::max(2 * H(), packed()));
}

template <class T>
void Llama<T>::allocated() {
    Base::allocated();
    const std::vector<float> rotations =
        rope_table(options().T, this->config().HS(), this->config().rope_theta);
    simt::copy_to_device(rotations_, rotations.data(), rotations.size() * sizeof(float), stream());
    simt::stream_synchronize(stream());
    const Block& first = block(0);
    for (int l = 1; l < this->config().L; l++) {
        Block& a = block(l);
        if (!a.gate_up) {
            T *const residual3 = a.residual3, *const act = a.act;
            a = first;
            // evaluation needs only the previous block's output, so two buffers alternate
            a.residual3 = residual3 ? residual3 : block(l % 2).residual3;
            a.act = act;
        }
        if (!a.act) a.act = first.act;
    }
}

template <class T>
typename Family<T>::Activation Llama<T>::activation(const std::string& name, int l) const {
    const size_t N = rows(), narrow = N * channels();
    if (name == "encoded") return {encoded_, narrow};
    if (name == "norm") return {norm_.out, narrow};
    const Block& a = blocks_.at(static_cast<size_t>(l));
    if (name == "norm1") return {a.norm1.out, narrow};
    if (name == "qkv") return {a.qkv, N * packed()};
    if (name == "att") return {a.att, N * A()};
    if (name == "residual2") return {a.residual2, narrow};
    if (name == "norm2") return {a.norm2.out, narrow};
    if (name == "gate_up") return {a.gate_up, N * 2 * H()};
    if (name == "act") return {a.act, N * H()};
    if (name == "residual3") return {a.residual3, narrow};
    return Family<T>::activation(name, l);
}
