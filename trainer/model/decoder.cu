#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/decode/decode_attention.cuh"
#include "kernels/decode/decode_encoder.cuh"
#include "kernels/decode/decode_matmul.cuh"
#include "kernels/encoder.cuh"
#include "kernels/gelu.cuh"
#include "kernels/layernorm.cuh"
#include "kernels/quantize.cuh"
#include "kernels/random.cuh"
#include "system/error.h"
#include "trainer/model/decoder.h"
#include "trainer/model/quantized_weights.h"

namespace {

constexpr size_t staging_floats = size_t{1} << 20;  // at least one row of a matrix

size_t size(int n) { return static_cast<size_t>(n); }

// A prompt is padded to one of a few lengths, so that libraries plan few shapes and their scratch is
// known beforehand. The padding follows the last token and, attention being causal, does not influence
// it.
int padded_length(int tokens, int max_tokens) {
    return static_cast<int>(std::min(std::bit_ceil(std::max(size(tokens), size_t{16})), size(max_tokens)));
}
std::vector<int> padded_lengths(int max_tokens) {
    std::vector<int> lengths{padded_length(1, max_tokens)};
    while (lengths.back() < max_tokens) lengths.push_back(padded_length(lengths.back() + 1, max_tokens));
    return lengths;
}

}  // namespace

template <class T>
Decoder<T>::Decoder(const GPT2Config& config, const DecoderOptions& options)
    : config_(config), options_(options), table_(config) {
    CHECK(options.samples > 0, "{} samples; expected 1 or more", options.samples);
    CHECK(options.max_tokens > 0 && options.max_tokens <= config.context,
          "a cache of {} tokens; expected 1 to the model's context of {}", options.max_tokens,
          config.context);
    layers_.resize(size(config.L));
    reserve_weights();
    reserve_activations();
}

template <class T>
Decoder<T>::~Decoder() {
    gemm_.reset();
    if (stream_) simt::stream_destroy(stream_);
}

// ----------------------------------------------------------------------------------------------------
// memory

template <class T>
void Decoder<T>::reserve_matrix(Matrix& matrix, size_t out, size_t in) {
    matrix.out = out, matrix.in = in;
    if (options_.int8) {
        weights_.reserve(matrix.quantized, out * in);
        weights_.reserve(matrix.scales, out);
    } else {
        weights_.reserve(matrix.weight, out * in);
    }
}

template <class T>
void Decoder<T>::reserve_weights() {
    for (const Tensor& tensor : table_.tensors()) {
        if (is_quantized(tensor))
            reserve_matrix(matrix(tensor.kind, tensor.layer), tensor.shape[0], tensor.shape[1]);
        else weights_.reserve(vector(tensor.kind, tensor.layer), tensor.elements);
    }
    for (Layer& layer : layers_) {
        for (T** part : {&layer.keys, &layer.values}) cache_.reserve(*part, cache_of(layer).elements());
    }
}

template <class T>
void Decoder<T>::reserve_activations() {
    const size_t C = size(config_.C), rows = size(std::max(options_.samples, options_.max_tokens));
    activations_.reserve(tokens_, rows);
    for (T** tensor : {&residual_, &norm_, &branch_, &att_}) activations_.reserve(*tensor, rows * C);
    activations_.reserve(qkv_, rows * 3 * C);
    for (T** tensor : {&fch_, &fch_gelu_}) activations_.reserve(*tensor, rows * 4 * C);
    activations_.reserve(logits_, size(options_.samples) * size(config_.Vp()));
    for (float** statistic : {&mean_, &rstd_}) activations_.reserve(*statistic, rows);
    activations_.reserve(lse_, size(options_.max_tokens) * size(config_.NH));
    size_t attention_bytes = 0;
    for (const int length : padded_lengths(options_.max_tokens))
        attention_bytes = std::max(
            attention_bytes, attention_.workspace_bytes<T>({1, length, config_.NH, config_.HS()}, false));

    workspace_.reserve(staging_, std::max(staging_floats, 4 * C));
    if (options_.int8) workspace_.reserve(dequantized_, 4 * C * C);
    workspace_.reserve(attention_partial_, decode_attention_scratch(options_.samples, config_.NH,
                                                                    config_.HS(), options_.max_tokens));
    workspace_.reserve(attention_work_, attention_bytes);
    workspace_.reserve(gemm_work_, gemm_workspace_bytes());
}

// The largest workspace that a product of any prompt needs.
template <class T>
size_t Decoder<T>::gemm_workspace_bytes() const {
    const size_t C = size(config_.C);
    size_t bytes = 0;
    const auto add = [&](int rows, size_t in, size_t out) {
        bytes = std::max(bytes, Gemm::workspace_bytes<T>(size(rows), in, out));
    };
    for (const int rows : padded_lengths(options_.max_tokens)) {
        for (const auto& [in, out] :
             {std::pair{C, 3 * C}, std::pair{C, C}, std::pair{C, 4 * C}, std::pair{4 * C, C}})
            add(rows, in, out);
    }
    return bytes;
}

template <class T>
MemoryPlan Decoder<T>::memory_plan() const {
    MemoryPlan plan;
    for (const Arena* arena : {&weights_, &cache_, &activations_, &workspace_})
        plan.emplace_back(arena->name(), arena->bytes());
    return plan;
}

template <class T>
void Decoder<T>::allocate() {
    stream_ = simt::stream_create();
    for (Arena* arena : {&weights_, &cache_, &activations_, &workspace_}) arena->allocate();
    // The kernels read whole tiles of the cache, also where tokens are still missing.
    for (const Layer& layer : layers_) {
        const size_t bytes = cache_of(layer).elements() * sizeof(T);
        simt::fill_zero(layer.keys, bytes, stream_);
        simt::fill_zero(layer.values, bytes, stream_);
    }
    gemm_ = std::make_unique<Gemm>(Gemm::Options{});
    gemm_->use_workspace(gemm_work_, gemm_workspace_bytes());
    host_raw_.resize(size(options_.samples) * size(config_.Vp()));
    host_logits_.resize(host_raw_.size());
    host_tokens_.resize(size(std::max(options_.samples, options_.max_tokens)));
}

// ----------------------------------------------------------------------------------------------------
// weights

template <class T>
typename Decoder<T>::Matrix& Decoder<T>::matrix(Kind kind, int layer) {
    if (kind == Kind::wte) return wte_;
    Layer& l = layers_[size(layer)];
    switch (kind) {
        case Kind::qkvw: return l.qkv;
        case Kind::attprojw: return l.attproj;
        case Kind::fcw: return l.fc;
        case Kind::fcprojw: return l.fcproj;
        default: throw Error("decoder: not a matrix");
    }
}

template <class T>
T*& Decoder<T>::vector(Kind kind, int layer) {
    if (kind == Kind::wpe) return wpe_;
    if (kind == Kind::lnfw) return lnfw_;
    if (kind == Kind::lnfb) return lnfb_;
    Layer& l = layers_[size(layer)];
    switch (kind) {
        case Kind::ln1w: return l.ln1w;
        case Kind::ln1b: return l.ln1b;
        case Kind::ln2w: return l.ln2w;
        case Kind::ln2b: return l.ln2b;
        case Kind::qkvb: return l.qkv.bias;
        case Kind::attprojb: return l.attproj.bias;
        case Kind::fcb: return l.fc.bias;
        case Kind::fcprojb: return l.fcproj.bias;
        default: throw Error("decoder: not a vector");
    }
}

template <class T>
void Decoder<T>::load(const Values& values) {
    for (const Tensor& tensor : table_.tensors()) {
        std::vector<float> of_tensor = values(tensor);
        CHECK(of_tensor.size() == tensor.elements || of_tensor.size() == tensor.unpadded_elements,
              "{}: {} values; expected {}", tensor.name, of_tensor.size(), tensor.unpadded_elements);
        of_tensor.resize(tensor.elements, 0.0f);
        const bool is_matrix = is_quantized(tensor);
        const Matrix to = is_matrix ? matrix(tensor.kind, tensor.layer) : Matrix{};
        T* const plain = is_matrix ? to.weight : vector(tensor.kind, tensor.layer);
        // fp32 values are copied to the device, a block of rows at a time, and converted there.
        const size_t columns = tensor.shape.back(), rows = tensor.elements / columns,
                     rows_at_once = std::max<size_t>(1, staging_floats / columns);
        for (size_t row = 0; row < rows; row += rows_at_once) {
            const size_t count = std::min(rows_at_once, rows - row), first = row * columns;
            simt::copy_to_device(staging_, of_tensor.data() + first, count * columns * sizeof(float),
                                 stream_);
            if (is_matrix && options_.int8)
                quantize(to.quantized + first, to.scales + row, staging_, count, static_cast<int>(columns),
                         stream_);
            else if constexpr (std::is_same_v<T, float>)
                simt::copy_on_device(plain + first, staging_, count * columns * sizeof(float), stream_);
            else convert(plain + first, staging_, count * columns, stream_);
        }
        simt::stream_synchronize(stream_);
    }
}

// ----------------------------------------------------------------------------------------------------
// a pass over the layers

// residual_ = the embeddings of host_tokens_
template <class T>
void Decoder<T>::embed(Pass pass) {
    simt::copy_to_device(tokens_, host_tokens_.data(), pass.rows * sizeof(int32_t), stream_);
    const int rows = static_cast<int>(pass.rows), C = config_.C;
    const T* place = wpe_ + size(length_) * size(C);
    if (options_.int8)
        decode_encoder(residual_, tokens_, wte_.quantized, wte_.scales, place, pass.rows, C,
                       pass.prompt ? size(C) : 0, stream_);
    else
        encoder_forward(residual_, tokens_, wte_.weight, place, pass.prompt ? 1 : rows,
                        pass.prompt ? rows : 1, C, stream_);
}

// out (rows, matrix.out) = inp (rows, matrix.in) times the matrix transposed, plus its bias. A prompt
// uses the library. A step uses kernels made for few rows, whose sums do not depend on the number of
// rows: a sample is the same alone and among others. (On a core with AMX the library is faster from 8
// rows on in bf16, 152 against 186 us for 768 x 768, and from 24 on in fp32, 432 against 499; but its
// roundings depend on the number of rows.)
template <class T>
void Decoder<T>::product(T* out, const T* inp, const Matrix& matrix, Pass pass, bool gelu) {
    if (!pass.prompt) {
        const DecodeMatmulShape shape{pass.rows, matrix.in, matrix.out};
        if (options_.int8)
            decode_matmul(out, inp, matrix.quantized, matrix.scales, matrix.bias, shape, gelu, stream_);
        else
            decode_matmul(out, inp, matrix.weight, static_cast<const float*>(nullptr), matrix.bias, shape,
                          gelu, stream_);
        return;
    }
    if (options_.int8)
        dequantize(dequantized_, matrix.quantized, matrix.scales, matrix.out, static_cast<int>(matrix.in),
                   stream_);
    const T* const weight = options_.int8 ? dequantized_ : matrix.weight;
    if (gelu)
        gemm_->forward_gelu(out, fch_, inp, weight, matrix.bias, pass.rows, matrix.in, matrix.out, stream_);
    else gemm_->forward(out, inp, weight, matrix.bias, pass.rows, matrix.in, matrix.out, stream_);
}

template <class T>
void Decoder<T>::attend(const Layer& layer, Pass pass) {
    const DecodeCache<T> cache = cache_of(layer);
    decode_append(cache, qkv_, length_, pass.tokens, pass.prompt, stream_);
    if (pass.prompt)
        attention_.forward(att_, lse_, qkv_, {1, static_cast<int>(pass.rows), config_.NH, config_.HS()},
                           attention_work_, stream_);
    else decode_attention(att_, qkv_, cache, length_ + 1, attention_partial_, stream_);
}

// From residual_, which holds the embeddings, to norm_, the final layernorm's output.
template <class T>
void Decoder<T>::forward_layers(Pass pass) {
    const int C = config_.C;
    layernorm_forward(norm_, mean_, rstd_, residual_, layers_[0].ln1w, layers_[0].ln1b, pass.rows, C,
                      stream_);
    for (size_t l = 0; l < layers_.size(); l++) {
        const Layer& layer = layers_[l];
        product(qkv_, norm_, layer.qkv, pass, false);
        attend(layer, pass);
        product(branch_, att_, layer.attproj, pass, false);
        residual_layernorm_forward(norm_, residual_, mean_, rstd_, residual_, branch_, layer.ln2w, layer.ln2b,
                                   pass.rows, C, stream_);
        product(fch_gelu_, norm_, layer.fc, pass, true);
        product(branch_, fch_gelu_, layer.fcproj, pass, false);
        const bool last = l + 1 == layers_.size();
        residual_layernorm_forward(norm_, residual_, mean_, rstd_, residual_, branch_,
                                   last ? lnfw_ : layers_[l + 1].ln1w, last ? lnfb_ : layers_[l + 1].ln1b,
                                   pass.rows, C, stream_);
    }
    length_ += pass.tokens;
}

// Logits (rows, Vp) of rows of norm_, in host memory.
template <class T>
const float* Decoder<T>::logits_of(const T* hidden, size_t rows) {
    product(logits_, hidden, wte_, {.rows = rows, .tokens = 1, .prompt = false}, false);
    const size_t count = rows * size(config_.Vp());
    simt::copy_to_host(host_raw_.data(), logits_, count * sizeof(T), stream_);
    simt::stream_synchronize(stream_);
    for (size_t i = 0; i < count; i++) host_logits_[i] = static_cast<float>(host_raw_[i]);
    return host_logits_.data();
}

template <class T>
void Decoder<T>::take_tokens(const std::vector<int>& tokens, size_t rows) {
    for (const int token : tokens)
        CHECK(token >= 0 && token < config_.V, "token {}; expected 0 to {}", token, config_.V - 1);
    std::fill(std::copy(tokens.begin(), tokens.end(), host_tokens_.begin()),
              host_tokens_.begin() + static_cast<std::ptrdiff_t>(rows), 0);
}

template <class T>
const float* Decoder<T>::prefill(const std::vector<int>& prompt) {
    CHECK(!prompt.empty() && prompt.size() <= size(options_.max_tokens),
          "a prompt of {} tokens; expected 1 to {}", prompt.size(), options_.max_tokens);
    const int tokens = static_cast<int>(prompt.size());
    const Pass pass{
        .rows = size(padded_length(tokens, options_.max_tokens)), .tokens = tokens, .prompt = true};
    take_tokens(prompt, pass.rows);
    length_ = 0;
    embed(pass);
    forward_layers(pass);
    return logits_of(norm_ + (prompt.size() - 1) * size(config_.C), 1);
}

template <class T>
const float* Decoder<T>::step(const std::vector<int>& tokens) {
    CHECK(tokens.size() == size(options_.samples), "{} tokens for {} samples; expected one each",
          tokens.size(), options_.samples);
    CHECK(length_ > 0, "a step before the prompt; expected prefill first");
    CHECK(length_ < options_.max_tokens, "the cache is full: it holds {} tokens", options_.max_tokens);
    const Pass pass{.rows = tokens.size(), .tokens = 1, .prompt = false};
    take_tokens(tokens, pass.rows);
    embed(pass);
    forward_layers(pass);
    return logits_of(norm_, pass.rows);
}

template class Decoder<float>;
template class Decoder<bfloat16>;
