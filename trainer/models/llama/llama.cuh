// llama.cuh: Llama, one operation a line. A block's forward and backward stand one above the other.
#pragma once
#include <algorithm>

#include "kernels/attention/rope.cuh"
#include "kernels/random.cuh"
#include "kernels/relu2.cuh"
#include "kernels/swiglu.cuh"
#include "trainer/models/llama/llama.h"

// again: backward recomputes the block (--recompute block), up to the last activation that it needs.
template <class T>
void Llama<T>::block_forward(int l, bool again) {
    const auto& p = layer(l);
    Block& a = block_[l];
    // In forward, norm1 has been computed already: by the kernel that ends the previous block, or for block
    // 0 by embed().
    if (again) norm(a.norm1, block_input(l), p.norm1);
    matmul("qkv", a.qkv, a.norm1.out, p.qkv);
    rope(l);
    attention(a.att, a.lse, a.qkv, l);
    matmul("attproj", work_.branch, a.att, p.attproj);
    residual_norm(a.norm2, a.residual2, block_input(l), work_.branch, p.norm2);
    matmul("up", a.up, a.norm2.out, p.up);
    activate(l, traits().gated ? "SwiGLU" : "ReLU squared");
    if (again) return;
    matmul("down", work_.branch, act(l), p.down);
    // The residual sum that ends this block is normalised in the same kernel, for the next block or for
    // the head.
    residual_norm(is_last(l) ? last_norm_ : block_[l + 1].norm1, residual3_[l], a.residual2, work_.branch,
                  is_last(l) ? p_.norm : layer(l + 1).norm1);
}

// dresidual holds the gradient of the block's output; it becomes the gradient of the block's input.
template <class T>
void Llama<T>::block_backward(int l) {
    const auto& p = layer(l);
    Block& a = block_[l];
    T *const dresidual = work_.dresidual, *const dnarrow = work_.dnarrow, *const dmiddle = work_.dmiddle,
             *const dwide = work_.dwide;
    if (options().recompute == Recompute::block) block_forward(l, true);
    if (options().recompute == Recompute::activation) activate(l, "SwiGLU again");
    matmul_dweight("down dW", p.down.weight, dresidual, act(l));
    matmul_dinput("down dX", dmiddle, dresidual, p.down.weight);
    activate_backward(dwide, dmiddle, l);
    matmul_dweight("up dW", p.up.weight, dwide, a.norm2.out);
    matmul_dinput("up dX", dnarrow, dwide, p.up.weight);
    norm_backward(dresidual, dnarrow, a.residual2, a.norm2, p.norm2, nullptr);
    matmul_dweight("attproj dW", p.attproj.weight, dresidual, a.att);
    matmul_dinput("attproj dX", dmiddle, dresidual, p.attproj.weight);
    attention_backward(dwide, dmiddle, a.qkv, a.att, a.lse);
    rope_backward(dwide, l);
    matmul_dweight("qkv dW", p.qkv.weight, dwide, a.norm1.out);
    matmul_dinput("qkv dX", dnarrow, dwide, p.qkv.weight);
    norm_backward(dresidual, dnarrow, block_input(l), a.norm1, p.norm1, nullptr);
}

template <class T>
void Llama<T>::embed() {
    encoder(encoded_, p_.wte, no_tensor);
    if (traits().embedding_norm) norm(embedded_, encoded_, {});
    norm(block_[0].norm1, block_input(0), layer(0).norm1);
}

// The residual stream ends in the final norm, so dresidual is written, not added to.
template <class T>
void Llama<T>::head_norm_backward() {
    norm_backward(work_.dresidual, work_.dnarrow, block_input(config().L), last_norm_, p_.norm, nullptr,
                  false);
}

// A tied wte is also the head: the head's product has overwritten or added to its gradient, and this adds
// more. An untied one has been set to zero.
template <class T>
void Llama<T>::embed_backward() {
    T* const dencoded = traits().embedding_norm ? work_.dnarrow : work_.dresidual;
    if (traits().embedding_norm)
        norm_backward(dencoded, work_.dresidual, encoded_, embedded_, {}, nullptr, false);
    encoder_backward(p_.wte, no_tensor, dencoded);
}

// ----------------------------------------------------------------------------------------------------
// operations

// In generation a token of each sample follows those in the cache, which holds turned keys.
template <class T>
void Llama<T>::rope(int l) {
    const HeadNorms<T> norms = head_norms(l);
    operation("RoPE", cost::rope<T>(shape(), norms.x));
    const int* const before = this->generates() ? this->generation_->before : nullptr;
    ::rope(block_[l].qkv, norms, {rotations_, traits().rope_sign, before}, shape(), stream());
}

template <class T>
void Llama<T>::rope_backward(T* dqkv, int l) {
    const HeadNorms<T> norms = head_norms(l, block_[l].qkv);
    const Turn back{rotations_, -traits().rope_sign};
    operation("RoPE backward", cost::rope_backward<T>(shape(), traits().head_norm));
    if (norms.q)
        weighted_rope_backward(dqkv, grad(layer(l).q_norm.weight), grad(layer(l).k_norm.weight),
                               work_.head_sums, norms, back, shape(), stream());
    else ::rope(dqkv, norms, back, shape(), stream());
}

template <class T>
HeadNorms<T> Llama<T>::head_norms(int l, const T* y) {
    const T* const q = param_or_none(layer(l).q_norm.weight);
    const T* const k = param_or_none(layer(l).k_norm.weight);
    return {this->eps(), block_[l].head_rstd, q, k, y, block_[l].unturned};
}

template <class T>
void Llama<T>::activate(int l, const char* name) {
    operation(name, traits().gated ? cost::swiglu<T>(rows() * H()) : cost::activation<T>(rows() * H()));
    if (traits().gated) swiglu_forward(act_[l], block_[l].up, rows(), config().H, stream());
    else relu2_forward(block_[l].up, rows() * H(), stream());
}

template <class T>
void Llama<T>::activate_backward(T* dup, const T* dact, int l) {
    const size_t n = rows() * H();
    operation(traits().gated ? "SwiGLU backward" : "ReLU squared backward",
              traits().gated ? cost::swiglu_backward<T>(n) : cost::activation_backward<T>(n));
    if (traits().gated) swiglu_backward(dup, dact, block_[l].up, rows(), config().H, stream());
    else relu2_backward(dup, dact, block_[l].up, n, stream());
}

// ----------------------------------------------------------------------------------------------------
// buffers

template <class T>
void Llama<T>::reserve(Arena& activations, Arena& workspace) {
    const size_t N = most_rows(), C = channels();
    CHECK(traits().gated || options().recompute != Recompute::activation,
          "--recompute gelu saves nothing in a {}, whose activation is in place; expected none or block",
          config().family);
    block_.resize(kept(Recompute::block)), act_.resize(kept(Recompute::activation));
    const int L = config().L;
    residual3_.resize(static_cast<size_t>(options().training ? L : std::min(L, 2)));  // two alternate
    reserve_rows(activations, "encoded", -1, encoded_, C);
    activations.reserve(rotations_, static_cast<size_t>(options().T) * HS());
    for (int l = 0; l < std::ssize(block_); l++) {
        Block& a = block_[l];
        reserve_norm(activations, "norm1", l, a.norm1, false);
        reserve_norm(activations, "norm2", l, a.norm2, false);
        reserve_rows(activations, "qkv", l, a.qkv, packed());
        reserve_rows(activations, "att", l, a.att, A());
        reserve_rows(activations, "residual2", l, a.residual2, C);
        reserve_rows(activations, traits().gated ? "gate_up" : "act", l, a.up, up_width());
        activations.reserve(a.lse, N * static_cast<size_t>(config().NH));
        const size_t turned = N * static_cast<size_t>(config().NH + config().NKV);
        if (traits().head_norm) activations.reserve(a.head_rstd, turned);
        if (traits().head_weights && options().training) activations.reserve(a.unturned, turned * HS());
    }
    for (int l = 0; traits().gated && l < std::ssize(act_); l++)
        reserve_rows(activations, "act", l, act_[l], H());
    for (int l = 0; l < std::ssize(residual3_); l++)
        reserve_rows(activations, "residual3", l, residual3_[l], C);
    if (traits().embedding_norm) reserve_norm(activations, "embedded", -1, embedded_, false);
    if (!traits().norm_weights) activations.reserve(this->ones_, C), activations.reserve(this->dones_, C);
    reserve_norm(activations, "norm", -1, last_norm_, false);

    workspace.reserve(work_.branch, N * C);
    this->reserve_scratch(workspace, 1);
    if (!options().training) return;
    for (T** tensor : {&work_.dresidual, &work_.dnarrow}) workspace.reserve(*tensor, N * C);
    workspace.reserve(work_.dmiddle, N * std::max(H(), A()));
    workspace.reserve(work_.dwide, N * std::max(up_width(), packed()));
    if (traits().head_weights) workspace.reserve(work_.head_sums, weighted_rope_sums(N) * 2 * HS());
}

template <class T>
void Llama<T>::allocated() {
    Base::allocated();
    const std::vector<float> rotations = rope_table(options().T, config().HS(), config().rope_theta);
    simt::copy_to_device(rotations_, rotations.data(), rotations.size() * sizeof(float), stream());
    if (this->ones_) {
        fill(this->ones_, 1.0f, channels(), stream());
        simt::fill_zero(this->dones_, channels() * sizeof(float), stream());
    }
    simt::stream_synchronize(stream());
}
