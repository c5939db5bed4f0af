// decoder.h: GPT-2 generates one token at a time, several samples side by side. The keys and values of
// all earlier tokens are kept in a cache.
//   Decoder<bfloat16> decoder(config, {.samples = 4, .max_tokens = 256});
//   decoder.allocate();
//   decoder.load([&](const Tensor& tensor) { return file.values(tensor); });
//   const float* logits = decoder.prefill(prompt);  // one row, for all samples
//   for (...) logits = decoder.step(tokens);        // in: a token a sample; out: a row of logits a sample
//   A step reads each weight once for all samples, and each sample's cache. T, the type of weights and
//   activations, is float or bfloat16, with the same roundings as training's forward pass (gpt2.h). With
//   int8 the matrices (wte included) are int8 with one scale for each output channel (quantize.cuh),
//   which is a quarter or half of the bytes; everything else stays T.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/decode/decode_cache.h"
#include "kernels/gemm/gemm.h"
#include "trainer/model/arena.h"
#include "trainer/model/gpt2.h"
#include "trainer/model/tensor_table.h"

struct DecoderOptions {
    int samples = 1;
    // Length of the cache: a sample's prompt and its continuation, at most the model's context.
    int max_tokens = 0;
    bool int8 = false;
};

template <class T>
class Decoder {
public:
    // fp32 values of a tensor, in the table's layout, with or without wte's padding.
    using Values = std::function<std::vector<float>(const Tensor&)>;

    // Plans the memory and allocates nothing. UsageError for impossible shapes (GPT2Config::check,
    // max_tokens > context, samples < 1).
    Decoder(const GPT2Config& config, const DecoderOptions& options);
    ~Decoder();
    Decoder(const Decoder&) = delete;

    const GPT2Config& config() const { return config_; }
    MemoryPlan memory_plan() const;
    // Allocates what the plan says; nothing is allocated afterwards. Error if memory cannot be allocated.
    void allocate();
    void load(const Values& values);

    // Starts again with a prompt of 1 to max_tokens tokens, which all samples share and which takes one
    // pass. Returns the logits (Vp) of the token that follows, in host memory, valid until the next call.
    // Entries from V on are padding. UsageError for an empty or too long prompt and for a token outside
    // the vocabulary.
    const float* prefill(const std::vector<int>& prompt);
    // Appends tokens[k] to sample k. Returns the logits (samples, Vp) of the tokens that follow, as
    // prefill does. UsageError if the cache is full, before prefill(), and for wrong tokens or a wrong
    // number of them.
    const float* step(const std::vector<int>& tokens);

    int length() const { return length_; }  // tokens in the cache
    int samples() const { return options_.samples; }
    int max_tokens() const { return options_.max_tokens; }

private:
    // A weight matrix (out, in), as T or as int8 with one scale a row, and its bias (nullptr for wte).
    struct Matrix {
        T* weight = nullptr;
        int8_t* quantized = nullptr;
        float* scales = nullptr;
        T* bias = nullptr;
        size_t in = 0, out = 0;
    };
    struct Layer {
        Matrix qkv, attproj, fc, fcproj;
        T *ln1w = nullptr, *ln1b = nullptr, *ln2w = nullptr, *ln2b = nullptr;
        T *keys = nullptr, *values = nullptr;  // the cache
    };

    Matrix& matrix(Kind kind, int layer);
    T*& vector(Kind kind, int layer);
    DecodeCache<T> cache_of(const Layer& layer) const {
        return {layer.keys, layer.values, options_.samples, config_.NH, config_.HS(), options_.max_tokens};
    }
    void reserve_matrix(Matrix& matrix, size_t out, size_t in);
    void reserve_weights();
    void reserve_activations();
    size_t gemm_workspace_bytes() const;

    // A pass over the layers, for a prompt (one sequence, padded to `rows`) or for one token of each
    // sample (rows = samples).
    struct Pass {
        size_t rows;
        int tokens;  // tokens of each sample that enter the cache
        bool prompt;
    };
    void take_tokens(const std::vector<int>& tokens, size_t rows);
    void embed(Pass pass);
    void forward_layers(Pass pass);
    void attend(const Layer& layer, Pass pass);
    void product(T* out, const T* inp, const Matrix& matrix, Pass pass, bool gelu);
    const float* logits_of(const T* hidden, size_t rows);

    const GPT2Config config_;
    const DecoderOptions options_;
    const TensorTable table_;
    stream_t stream_ = nullptr;
    int length_ = 0;

    Arena weights_{"weights"}, cache_{"keys and values"}, activations_{"activations"},
        workspace_{"workspace"};
    Matrix wte_;
    T *wpe_ = nullptr, *lnfw_ = nullptr, *lnfb_ = nullptr;
    std::vector<Layer> layers_;

    int32_t* tokens_ = nullptr;
    T *residual_ = nullptr, *norm_ = nullptr, *branch_ = nullptr, *qkv_ = nullptr, *att_ = nullptr,
      *fch_ = nullptr, *fch_gelu_ = nullptr, *logits_ = nullptr;
    float *mean_ = nullptr, *rstd_ = nullptr, *lse_ = nullptr;
    float* staging_ = nullptr;            // fp32 weights on their way to the device's format
    T* dequantized_ = nullptr;            // with int8: the matrix that a prompt is multiplied by, as T
    float* attention_partial_ = nullptr;  // scratch of decode_attention
    std::byte *gemm_work_ = nullptr, *attention_work_ = nullptr;
    std::vector<int32_t> host_tokens_;
    std::vector<T> host_raw_;
    std::vector<float> host_logits_;

    // Attention of a prompt, which is computed once. On a GPU, cuDNN's planning would take longer than
    // our own kernel.
    Attention attention_{simt::is_gpu() ? AttentionBackend::kernel : AttentionBackend::automatic};
    std::unique_ptr<Gemm> gemm_;
};

extern template class Decoder<float>;
extern template class Decoder<bfloat16>;
