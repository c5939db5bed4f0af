// gpt2.cuh: GPT-2, one operation a line. A block's forward and backward stand one above the other.
#pragma once
#include "trainer/models/gpt2/gpt2.h"

// again: backward recomputes the block (--recompute block), up to the last activation that it needs.
template <class T>
void GPT2<T>::block_forward(int l, bool again) {
    const auto& p = layer(l);
    Block& a = block_[l];
    // In forward, ln1 is there already: from the kernel that ends the previous block, or from embed().
    if (again) norm(a.ln1, block_input(l), p.ln1);
    matmul("qkv", a.qkv, a.ln1.out, p.qkv);
    attention(a.att, a.lse, a.qkv, l);
    matmul("attproj", work_.branch, a.att, p.attproj);
    residual_norm(a.ln2, a.residual2, block_input(l), work_.branch, p.ln2);
    matmul("fc + GELU", fch_gelu_[l], a.ln2.out, p.fc, Activation::gelu, a.fch);
    if (again) return;
    matmul("fcproj", work_.branch, fch_gelu_[l], p.fcproj);
    // The residual sum that ends this block is normalised in the same kernel, for the next block or for
    // the head.
    residual_norm(is_last(l) ? lnf_ : block_[l + 1].ln1, residual3_[l], a.residual2, work_.branch,
                  is_last(l) ? p_.lnf : layer(l + 1).ln1);
}

// dresidual holds the gradient of the block's output; it becomes the gradient of the block's input. Two bias
// gradients are sums of dresidual, so the layernorm's backward that completes dresidual writes them: that of
// attproj here, and that of fcproj in the block above or in head_norm_backward().
template <class T>
void GPT2<T>::block_backward(int l) {
    const auto& p = layer(l);
    Block& a = block_[l];
    T *const dresidual = work_.dresidual, *const dnarrow = work_.dnarrow, *const dwide = work_.dwide;
    if (options().recompute == Recompute::block) block_forward(l, true);
    if (options().recompute == Recompute::activation) gelu("GELU again", fch_gelu_[l], a.fch, 4 * channels());
    matmul_dweight("fcproj dW", p.fcproj.weight, dresidual, fch_gelu_[l]);
    matmul_dinput("fcproj dX + dGELU", dwide, dresidual, p.fcproj.weight, Activation::gelu, a.fch);
    matmul_dweight_dbias("fc dW", p.fc, dwide, a.ln2.out);
    matmul_dinput("fc dX", dnarrow, dwide, p.fc.weight);
    norm_backward(dresidual, dnarrow, a.residual2, a.ln2, p.ln2, grad(p.attproj.bias));
    matmul_dweight("attproj dW", p.attproj.weight, dresidual, a.att);
    matmul_dinput("attproj dX", dnarrow, dresidual, p.attproj.weight);
    attention_backward(dwide, dnarrow, a.qkv, a.att, a.lse);
    matmul_dweight_dbias("qkv dW", p.qkv, dwide, a.ln1.out);
    matmul_dinput("qkv dX", dnarrow, dwide, p.qkv.weight);
    norm_backward(dresidual, dnarrow, block_input(l), a.ln1, p.ln1,
                  l > 0 ? grad(layer(l - 1).fcproj.bias) : nullptr);
}

template <class T>
void GPT2<T>::embed() {
    encoder(encoded_, p_.wte, p_.wpe);
    norm(block_[0].ln1, encoded_, layer(0).ln1);
}

// The residual stream ends in the final layernorm, so dresidual is written, not added to.
template <class T>
void GPT2<T>::head_norm_backward() {
    const int last = config().L - 1;
    norm_backward(work_.dresidual, work_.dnarrow, residual3_[last], lnf_, p_.lnf,
                  grad(layer(last).fcproj.bias), false);
}

// wte is also the head: the head's product has overwritten or added to its gradient, and this adds more.
template <class T>
void GPT2<T>::embed_backward() {
    encoder_backward(p_.wte, p_.wpe, work_.dresidual);
}

// ----------------------------------------------------------------------------------------------------
// buffers

template <class T>
void GPT2<T>::reserve(Arena& activations, Arena& workspace) {
    const size_t N = most_rows(), C = channels();
    block_.resize(kept(Recompute::block)), fch_gelu_.resize(kept(Recompute::activation));
    const int L = config().L;
    residual3_.resize(static_cast<size_t>(options().training ? L : std::min(L, 2)));  // two alternate
    reserve_rows(activations, "encoded", -1, encoded_, C);
    for (int l = 0; l < std::ssize(block_); l++) {
        Block& a = block_[l];
        reserve_norm(activations, "ln1", l, a.ln1, true);
        reserve_norm(activations, "ln2", l, a.ln2, true);
        reserve_rows(activations, "qkv", l, a.qkv, 3 * C);
        reserve_rows(activations, "att", l, a.att, C);
        reserve_rows(activations, "residual2", l, a.residual2, C);
        reserve_rows(activations, "fch", l, a.fch, 4 * C);
        activations.reserve(a.lse, N * static_cast<size_t>(config().NH));
    }
    for (int l = 0; l < std::ssize(fch_gelu_); l++)
        reserve_rows(activations, "fch_gelu", l, fch_gelu_[l], 4 * C);
    for (int l = 0; l < std::ssize(residual3_); l++)
        reserve_rows(activations, "residual3", l, residual3_[l], C);
    reserve_norm(activations, "lnf", -1, lnf_, true);

    workspace.reserve(work_.branch, N * C);
    this->reserve_scratch(workspace, 3);
    if (!options().training) return;
    for (T** tensor : {&work_.dresidual, &work_.dnarrow}) workspace.reserve(*tensor, N * C);
    workspace.reserve(work_.dwide, N * 4 * C);
}
