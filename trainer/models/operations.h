// operations.h: the operations of which blocks are made, one call each. An operation knows where its
// parameters lie, its name and its cost for --profile, and the seam or kernel that computes it.
//   N = B*T rows. Gradients of parameters accumulate over a step's micro-steps; gradients of activations are
//   written.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "trainer/engine/family.h"

// The output of a norm, with the statistics of its input's rows; RMSNorm has no mean.
template <class T>
struct Normalised {
    T* out = nullptr;
    float *mean = nullptr, *rstd = nullptr;
};

// An activation of every block, or of fewer, if blocks write over each other's in turns.
template <class X>
struct OfBlocks : std::vector<X> {
    X& operator[](int l) { return this->data()[static_cast<size_t>(l) % this->size()]; }
};

template <class T>
class Operations : public Family<T> {
public:
    explicit Operations(const ModelConfig& config) : config_(config) {}
    const ModelConfig& config() const override { return config_; }
    typename Family<T>::Activation activation(const std::string& name, int l) const override;

protected:
    // Reserves the scratch of all operations and, to generate, the cache. norm_sums: layernorm_backward's
    // outputs that are sums over rows. Call from reserve().
    void reserve_scratch(Arena& workspace, size_t norm_sums);
    void allocated() override;
    // Reserves the rows of an activation, which activation() finds by its name in block l.
    void reserve_rows(Arena& activations, const char* name, int l, T*& tensor, size_t channels);
    void reserve_norm(Arena& activations, const char* name, int l, Normalised<T>& norm, bool has_mean);
    // How many blocks keep an activation that --recompute `from` and all after it recompute in backward.
    size_t kept(Recompute from) const {
        return options().training && options().recompute < from ? static_cast<size_t>(config_.L) : 1;
    }
    // N of a whole micro-step.
    size_t most_rows() const { return static_cast<size_t>(options().B) * static_cast<size_t>(options().T); }

    // out (N, C) = wte[token] + wpe[position]; wpe may be no_tensor, here and in backward
    void encoder(T* out, TensorId wte, TensorId wpe);
    // dwte, dwpe += dout
    void encoder_backward(TensorId wte, TensorId wpe, const T* dout);

    // out (N, OC) = inp (N, C) weight (OC, C)^T + bias. With an activation this sum is pre_activation, kept
    // for backward, and out = activation(pre_activation).
    void matmul(const char* name, T* out, const T* inp, const Affine& p, Activation activation = {},
                T* pre_activation = nullptr);
    // dweight = dout^T inp in the step's first micro-step, += in later ones
    void matmul_dweight(const char* name, TensorId weight, const T* dout, const T* inp);
    // The same, and dbias += the column sums of dout
    void matmul_dweight_dbias(const char* name, const Affine& p, const T* dout, const T* inp);
    // dinp (N, C) = dout (N, OC) weight. With an activation, of which the matmul's input was the result, dinp
    // is the gradient of pre_activation.
    void matmul_dinput(const char* name, T* dinp, const T* dout, TensorId weight, Activation activation = {},
                       const T* pre_activation = nullptr);
    void gelu(const char* name, T* out, const T* pre_gelu, size_t channels);

    // qkv of block l, whose keys and values enter the cache when the model generates
    void attention(T* out, float* lse, const T* qkv, int l);
    void attention_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const float* lse);

    // Layernorm, or RMSNorm where p has no bias.
    void norm(const Normalised<T>& to, const T* inp, const Affine& p) { residual_norm(to, {}, inp, {}, p); }
    // sum = inp + branch; to = norm(sum)
    void residual_norm(const Normalised<T>& to, T* sum, const T* inp, const T* branch, const Affine& p);
    // dresidual += the gradient of inp, or = if `residual` is false, because the residual stream ends here.
    // dsum += the column sums of the new dresidual: the bias gradient of the projection that was added to the
    // stream just before. nullptr: there is none.
    void norm_backward(T* dresidual, const T* dout, const T* inp, const Normalised<T>& kept, const Affine& p,
                       float* dsum, bool residual = true);

    using Family<T>::rows;
    using Family<T>::stream;
    using Family<T>::options;
    using Family<T>::param;
    using Family<T>::grad;
    size_t channels() const { return static_cast<size_t>(config_.C); }
    Gemm& gemm() { return *this->context_->gemm; }
    void operation(const char* name, const Cost& cost) { this->context_->operation(name, cost); }
    float eps() const { return config_.norm_eps > 0 ? static_cast<float>(config_.norm_eps) : 1e-5f; }
    T* param_or_none(TensorId id) { return id == no_tensor ? nullptr : param(id); }
    float* grad_or_none(TensorId id) { return id == no_tensor ? nullptr : grad(id); }
    // Weights of norms that have none, and their gradient, which is not used. A family with such norms
    // reserves them.
    T* ones_ = nullptr;
    float* dones_ = nullptr;
    AttentionShape attention_shape(int B, int sequence) const {
        return {B, sequence, config_.NH, config_.HS(), config_.kv_heads()};
    }
    // That of the batch.
    AttentionShape shape() const { return attention_shape(this->context_->B, this->context_->T); }

private:
    // operations_generation.cuh: the same when the model generates
    void reserve_cache(Arena& workspace);
    void generate_embedding(T* out, TensorId wte, TensorId wpe);
    void generate_product(const char* name, T* out, const T* inp, const Affine& p, Activation activation,
                          T* pre_activation);
    void generate_attention(T* out, float* lse, const T* qkv, int l);
    std::array<size_t, 2> sizes(TensorId weight) const { return this->table_->matrix(weight); }

    const ModelConfig config_;
    std::map<std::pair<std::string, int>, std::pair<T**, size_t>> named_;  // and the channels of each
    std::unique_ptr<Attention> attention_;
    std::byte* attention_scratch_ = nullptr;
    float* norm_scratch_ = nullptr;
};

extern template class Operations<float>;
extern template class Operations<bfloat16>;
