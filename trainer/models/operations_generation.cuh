// operations_generation.cuh: the operations of a model that generates, over a prompt or one token a sample
#pragma once
#include "kernels/decode/decode_attention.cuh"
#include "kernels/decode/decode_encoder.cuh"
#include "trainer/engine/generation.cuh"
#include "trainer/models/operations.h"

template <class T>
void Operations<T>::reserve_cache(Arena& workspace) {
    GenerationState<T>& g = *this->generation_;
    const int samples = g.options.samples, max_tokens = g.options.max_tokens;
    g.caches.resize(static_cast<size_t>(config_.L),
                    {nullptr, nullptr, samples, config_.NH, config_.HS(), max_tokens, config_.kv_heads()});
    for (DecodeCache<T>& cache : g.caches)
        for (T** part : {&cache.keys, &cache.values}) g.cache_memory.reserve(*part, cache.elements());
    workspace.reserve(g.attention_scratch,
                      decode_attention_scratch(samples, config_.NH, config_.HS(), max_tokens));
}

// The kernels read whole tiles of the cache, also where tokens are still missing.
template <class T>
void Operations<T>::allocated() {
    if (!this->generation_) return;
    for (const DecodeCache<T>& cache : this->generation_->caches) {
        simt::fill_zero(cache.keys, cache.elements() * sizeof(T), stream());
        simt::fill_zero(cache.values, cache.elements() * sizeof(T), stream());
    }
}

template <class T>
void Operations<T>::generate_embedding(T* out, TensorId wte, TensorId wpe) {
    const GenerationState<T>& g = *this->generation_;
    const auto& tokens = g.weights[wte];
    operation("encoder", {});
    tokens.use([&](const auto* table) {
        decode_encoder(out, g.ids(), table, tokens.scales, param_or_none(wpe), g.before, rows(), config_.C,
                       g.is_prompt, stream());
    });
}

// A prompt uses the library.
template <class T>
void Operations<T>::generate_product(const char* name, T* out, const T* inp, const Affine& p,
                                     Activation activation, T* pre_activation) {
    const GenerationState<T>& g = *this->generation_;
    const T* const bias = param_or_none(p.bias);
    const auto [OC, C] = sizes(p.weight);
    const auto& weight = g.weights[p.weight];
    operation(name, {});
    if (!g.is_prompt) return decode_product(out, inp, weight, bias, {rows(), C, OC}, activation, stream());
    if (weight.quantized)
        gemm().forward_int8(out, inp, {weight.quantized, weight.scales}, bias, rows(), C, OC,
                            {g.int8_scratch, g.int8_scratch_bytes}, stream(), activation, pre_activation);
    else gemm().forward(out, inp, weight.values, bias, rows(), C, OC, stream(), activation, pre_activation);
}

template <class T>
void Operations<T>::generate_attention(T* out, float* lse, const T* qkv, int l) {
    const GenerationState<T>& g = *this->generation_;
    const DecodeCache<T>& cache = g.caches[static_cast<size_t>(l)];
    operation("attention", {});
    decode_append(cache, qkv, g.before, g.tokens, g.is_prompt, stream());
    if (g.is_prompt)
        attention_->forward(out, lse, qkv, attention_shape(1, this->context_->T), attention_scratch_,
                            stream());
    else decode_attention(out, qkv, cache, g.before, g.most, g.attention_scratch, stream());
}
