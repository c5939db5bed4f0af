// gpt2.cuh: GPT-2, one operation a line. A block's forward and backward stand one above the other.
#pragma once
#include "trainer/models/gpt2/gpt2.h"

// again: backward recomputes the block (--recompute block), up to the last activation that it needs.
template <class T>
void GPT2<T>::block_forward(int l, bool again) {
    const auto& p = layer(l);
    Block& a = block(l);
    // In forward, ln1 is there already: from the kernel that ends the previous block, or from embed().
    if (again) layernorm("layernorm again", a.ln1, block_input(l), p.ln1);
    matmul("qkv", a.qkv, a.ln1.out, p.qkv);
    attention(a.att, a.lse, a.qkv, l);
    matmul("attproj", work_.branch, a.att, p.attproj);
    residual_layernorm(a.ln2, a.residual2, block_input(l), work_.branch, p.ln2);
    matmul("fc + GELU", a.fch_gelu, a.ln2.out, p.fc, Activation::gelu, a.fch);
    if (again) return;
    matmul("fcproj", work_.branch, a.fch_gelu, p.fcproj);
    // The residual sum that ends this block is normalised in the same kernel, for the next block or for
    // the head.
    residual_layernorm(is_last(l) ? lnf_ : block(l + 1).ln1, a.residual3, a.residual2, work_.branch,
                       is_last(l) ? p_.lnf : layer(l + 1).ln1);
}

// dresidual holds the gradient of the block's output; it becomes the gradient of the block's input. Two bias
// gradients are sums of dresidual, so the layernorm's backward that completes dresidual writes them: that of
// attproj here, and that of fcproj in the block above or in head_norm_backward().
template <class T>
void GPT2<T>::block_backward(int l) {
    const auto& p = layer(l);
    Block& a = block(l);
    T *const dresidual = work_.dresidual, *const dnarrow = work_.dnarrow, *const dwide = work_.dwide;
    if (options().recompute == Recompute::block) block_forward(l, true);
    if (options().recompute == Recompute::activation) gelu("GELU again", a.fch_gelu, a.fch, 4 * channels());
    matmul_dweight("fcproj dW", p.fcproj.weight, dresidual, a.fch_gelu);
    matmul_dinput("fcproj dX + dGELU", dwide, dresidual, p.fcproj.weight, Activation::gelu, a.fch);
    matmul_dweight_dbias("fc dW", p.fc, dwide, a.ln2.out);
    matmul_dinput("fc dX", dnarrow, dwide, p.fc.weight);
    layernorm_backward(dresidual, dnarrow, a.residual2, a.ln2, p.ln2, grad(p.attproj.bias));
    matmul_dweight("attproj dW", p.attproj.weight, dresidual, a.att);
    matmul_dinput("attproj dX", dnarrow, dresidual, p.attproj.weight);
    attention_backward(dwide, dnarrow, a.qkv, a.att, a.lse);
    matmul_dweight_dbias("qkv dW", p.qkv, dwide, a.ln1.out);
    matmul_dinput("qkv dX", dnarrow, dwide, p.qkv.weight);
    layernorm_backward(dresidual, dnarrow, block_input(l), a.ln1, p.ln1,
                       l > 0 ? grad(layer(l - 1).fcproj.bias) : nullptr);
}

template <class T>
void GPT2<T>::embed() {
    encoder(encoded_, p_.wte, p_.wpe);
    layernorm("layernorm", block(0).ln1, encoded_, layer(0).ln1);
}

// The residual stream ends in the final layernorm, so dresidual is written, not added to.
template <class T>
void GPT2<T>::head_norm_backward() {
    const int last = this->config().L - 1;
    layernorm_backward(work_.dresidual, work_.dnarrow, block(last).residual3, lnf_, p_.lnf,
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
TensorTable GPT2<T>::make_table(const TableLayout& layout) {
    TensorTable table(this->config().L, layout);
    p_ = add_gpt2(table, this->config());
    return table;
}

template <class T>
void GPT2<T>::reserve(Arena& activations, Arena& workspace) {
    const size_t N = most_rows(), C = channels(), heads = N * static_cast<size_t>(this->config().NH);
    const bool keep_block = options().training && options().recompute != Recompute::block;
    const bool keep_gelu = keep_block && options().recompute != Recompute::activation;
    activations.reserve(encoded_, N * C);
    for (int l = 0; l < this->config().L; l++) {
        Block& a = block(l);
        // Activations that backward does not need exist only once, in block 0; allocated() points the other
        // blocks to them.
        if (keep_block || l == 0) {
            reserve_normalised(activations, a.ln1);
            reserve_normalised(activations, a.ln2);
            for (T** tensor : {&a.att, &a.residual2}) activations.reserve(*tensor, N * C);
            activations.reserve(a.qkv, N * 3 * C);
            activations.reserve(a.fch, N * 4 * C);
            activations.reserve(a.lse, heads);
        }
        if (keep_gelu || l == 0) activations.reserve(a.fch_gelu, N * 4 * C);
        if (options().training || l < 2) activations.reserve(a.residual3, N * C);
    }
    reserve_normalised(activations, lnf_);

    workspace.reserve(work_.branch, N * C);
    this->reserve_scratch(workspace);
    if (!options().training) return;
    for (T** tensor : {&work_.dresidual, &work_.dnarrow}) workspace.reserve(*tensor, N * C);
    workspace.reserve(work_.dwide, N * 4 * C);
}

template <class T>
void GPT2<T>::allocated() {
    Base::allocated();
    const Block& first = block(0);
    for (int l = 1; l < this->config().L; l++) {
        Block& a = block(l);
        if (!a.fch) {
            T* const residual3 = a.residual3;
            T* const fch_gelu = a.fch_gelu;
            a = first;
            // evaluation needs only the previous block's output, so two buffers alternate
            a.residual3 = residual3 ? residual3 : block(l % 2).residual3;
            a.fch_gelu = fch_gelu;
        }
        if (!a.fch_gelu) a.fch_gelu = first.fch_gelu;
    }
}

template <class T>
typename Family<T>::Activation GPT2<T>::activation(const std::string& name, int l) const {
    const size_t narrow = rows() * channels();
    if (name == "encoded") return {encoded_, narrow};
    if (name == "lnf") return {lnf_.out, narrow};
    const Block& a = blocks_.at(static_cast<size_t>(l));
    if (name == "ln1") return {a.ln1.out, narrow};
    if (name == "qkv") return {a.qkv, 3 * narrow};
    if (name == "att") return {a.att, narrow};
    if (name == "residual2") return {a.residual2, narrow};
    if (name == "ln2") return {a.ln2.out, narrow};
    if (name == "fch") return {a.fch, 4 * narrow};
    if (name == "fch_gelu") return {a.fch_gelu, 4 * narrow};
    if (name == "residual3") return {a.residual3, narrow};
    return Family<T>::activation(name, l);
}
