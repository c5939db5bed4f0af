// llama.h: Llama's activations and its passes, which llama.cuh lists operation by operation.
//   Touvron et al. 2023, arXiv:2302.13971; pre-norm blocks with RMSNorm, rotary positions, heads that may
//   share keys and values, SwiGLU, no biases, and a head that is tied to the embedding or not. Qwen3 and
//   nanochat are the same with other traits, llama_table.h.
#pragma once
#include "trainer/models/llama/llama_table.h"
#include "trainer/models/operations.h"

template <class T>
struct HeadNorms;  // rope.cuh

template <class T>
class Llama : public Operations<T> {
public:
    explicit Llama(const ModelConfig& config) : Operations<T>((check_llama(config), config)) {}

    void add_rows(TensorTable& table) override { p_ = add_llama(table, config()); }
    void reserve(Arena& activations, Arena& workspace) override;
    void allocated() override;
    Head<T> head() const override { return {last_norm_.out, work_.dnarrow, p_.head, traits().logit_cap}; }

    void embed() override;
    void block_forward(int l) override { block_forward(l, false); }
    void head_norm_backward() override;
    void block_backward(int l) override;
    void embed_backward() override;

private:
    // The activations of a block; q and k are turned, and unturned keeps them as they were, for norms with
    // weights. Without a gate the activation is computed in place, in up.
    struct Block {
        Normalised<T> norm1, norm2;
        T *qkv = nullptr, *unturned = nullptr, *att = nullptr, *residual2 = nullptr, *up = nullptr;
        float *lse = nullptr, *head_rstd = nullptr;
    };
    struct Workspace {           // contents last for one operation, or until a later one in the same step
        T* branch = nullptr;     // (N, C) output of a projection, before it is added to the residual
        T* dresidual = nullptr;  // (N, C) gradient of the residual stream
        T* dnarrow = nullptr;    // (N, C) gradient of a norm's output
        T* dmiddle = nullptr;    // (N, max(H, A)) gradient of the activation's or of the attention's output
        T* dwide = nullptr;      // (N, max(2 H, A + 2 NKV * HS)) gradient of up, or of qkv
        float* head_sums = nullptr;  // sums of the gradients of q_norm and k_norm
    };

    // The operations that only this family has.
    void rope(int l);
    void rope_backward(T* dqkv, int l);
    HeadNorms<T> head_norms(int l, const T* y = nullptr);
    void activate(int l, const char* name);
    void activate_backward(T* dup, const T* dact, int l);

    void block_forward(int l, bool again);
    const LlamaParameters::Layer& layer(int l) const { return p_.layers[static_cast<size_t>(l)]; }
    const T* block_input(int l) {
        return l > 0 ? residual3_[l - 1] : traits().embedding_norm ? embedded_.out : encoded_;
    }
    bool is_last(int l) const { return l + 1 == config().L; }
    const LlamaTraits& traits() const { return llama_traits(config()); }
    T* act(int l) { return traits().gated ? act_[l] : block_[l].up; }
    size_t H() const { return static_cast<size_t>(config().H); }
    size_t up_width() const { return traits().gated ? 2 * H() : H(); }
    // Channels of q, and of q, k and v together.
    size_t A() const { return static_cast<size_t>(config().NH) * HS(); }
    size_t packed() const { return A() + static_cast<size_t>(2 * config().NKV) * HS(); }
    size_t HS() const { return static_cast<size_t>(config().HS()); }

    using Base = Operations<T>;
    using Base::attention, Base::attention_backward, Base::channels, Base::config, Base::encoder,
        Base::encoder_backward, Base::grad, Base::kept, Base::matmul, Base::matmul_dinput,
        Base::matmul_dweight, Base::most_rows, Base::norm, Base::norm_backward, Base::operation,
        Base::options, Base::param_or_none, Base::reserve_norm, Base::reserve_rows, Base::residual_norm,
        Base::rows, Base::shape, Base::stream;

    LlamaParameters p_;
    T* encoded_ = nullptr;        // (N, C)
    float* rotations_ = nullptr;  // (T, 2, HS/2): rope.cuh
    OfBlocks<Block> block_;
    OfBlocks<T*> act_, residual3_;
    Normalised<T> embedded_, last_norm_;
    Workspace work_;
};
