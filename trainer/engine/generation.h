// generation.h: what a block's operations find when the model generates (decoder.h) instead of training: its
// weights as T or int8, and the cache of keys and values. The block is the same one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/decode/decode_cache.h"
#include "kernels/gemm/gemm.h"
#include "trainer/engine/arena.h"

struct DecoderOptions {
    int samples = 1;
    // Length of the cache: a sample's prompt and its continuation, at most the model's context.
    int max_tokens = 0;
    bool int8 = false;
    Gemm::OnCpu int8_products = Gemm::OnCpu::automatic;  // for tests
};

template <class T>
struct GenerationState {
    // As T, or as int8 with one scale a row.
    struct Weight {
        T* values = nullptr;
        int8_t* quantized = nullptr;
        float* scales = nullptr;

        // f(values) or f(quantized).
        template <class F>
        void use(const F& f) const {
            if (quantized) f(quantized);
            else f(values);
        }
    };
    const DecoderOptions options;
    Arena& cache_memory;
    std::vector<Weight> weights = {};         // by TensorId
    std::vector<DecodeCache<T>> caches = {};  // by block
    // Scratch for a prompt's products with int8 weights, and for decode_attention.
    std::byte* int8_scratch = nullptr;
    size_t int8_scratch_bytes = 0;
    float* attention_scratch = nullptr;

    // On the device: the number of tokens in the cache before this pass, and behind it the pass's tokens.
    int* before = nullptr;
    const int* ids() const { return before + 1; }

    bool active = false;  // the family's operations generate; otherwise they train or evaluate
    int length = 0;       // tokens in the cache
    // A pass over the blocks takes a prompt, which is one sequence for all samples, or one token of each
    // sample.
    bool is_prompt = false;
    int tokens = 1;  // of each sample that enter the cache in this pass; a prompt's padding follows them
    int most = 0;    // at least the tokens in the cache after this pass, for which launches are sized
};
