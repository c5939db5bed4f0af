// gpt2.h: GPT-2's activations and its passes, which gpt2.cuh lists operation by operation.
//   Radford et al. 2019; pre-layernorm blocks, learned positions, tanh-GELU, a head tied to wte.
#pragma once
#include "trainer/models/gpt2/gpt2_table.h"
#include "trainer/models/operations.h"

template <class T>
class GPT2 : public Operations<T> {
public:
    explicit GPT2(const ModelConfig& config) : Operations<T>((check_gpt2(config), config)) {}

    void add_rows(TensorTable& table) override { p_ = add_gpt2(table, config()); }
    void reserve(Arena& activations, Arena& workspace) override;
    Head<T> head() const override { return {lnf_.out, work_.dnarrow, p_.wte}; }

    void embed() override;
    void block_forward(int l) override { block_forward(l, false); }
    void head_norm_backward() override;
    void block_backward(int l) override;
    void embed_backward() override;

private:
    struct Block {  // its activations
        Normalised<T> ln1, ln2;
        T *qkv = nullptr, *att = nullptr, *residual2 = nullptr, *fch = nullptr;
        float* lse = nullptr;
    };
    struct Workspace {           // contents last for one operation, or until a later one in the same step
        T* branch = nullptr;     // (N, C) output of a projection, before it is added to the residual
        T* dresidual = nullptr;  // (N, C) gradient of the residual stream
        T* dnarrow = nullptr;    // (N, C) gradient of a layernorm's output or of the attention's output
        T* dwide = nullptr;      // (N, 4C) gradient of the GELU's input or of qkv
    };

    void block_forward(int l, bool again);
    const GPT2Parameters::Layer& layer(int l) const { return p_.layers[static_cast<size_t>(l)]; }
    const T* block_input(int l) { return l == 0 ? encoded_ : residual3_[l - 1]; }
    bool is_last(int l) const { return l + 1 == config().L; }

    using Base = Operations<T>;
    using Base::attention, Base::attention_backward, Base::channels, Base::config, Base::encoder,
        Base::encoder_backward, Base::kept, Base::gelu, Base::grad, Base::matmul, Base::matmul_dinput,
        Base::matmul_dweight, Base::matmul_dweight_dbias, Base::most_rows, Base::norm, Base::norm_backward,
        Base::options, Base::reserve_norm, Base::reserve_rows, Base::residual_norm;

    GPT2Parameters p_;
    T* encoded_ = nullptr;  // (N, C)
    OfBlocks<Block> block_;
    OfBlocks<T*> fch_gelu_, residual3_;
    Normalised<T> lnf_;
    Workspace work_;
};
