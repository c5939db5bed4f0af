// generator.h: a model that only generates: its weights, and the decoder that works with them.
//   Generator<bfloat16> generator(make_family<bfloat16>(config), {.samples = 4, .max_tokens = 256});
//   generator.allocate();
//   generator.load([&](const auto&... rows) { file.values(rows...); });
//   generator.decoder().prefill(prompt);
//   With int8 the matrices (the embedding included) are int8 with one scale for each output channel
//   (quantize.cuh), which is a quarter or half of the bytes; everything else is of type T.
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "trainer/engine/decoder.h"

template <class T>
class Generator {
public:
    // Fills `to` with the fp32 values of rows of a tensor, in the table's layout, from element `first` on.
    using Values = std::function<void(const Tensor& tensor, size_t first, std::span<float> to)>;

    // Plans the memory and allocates nothing. UsageError for impossible shapes (the family's, the decoder's).
    Generator(std::unique_ptr<Family<T>> family, const DecoderOptions& options);
    Generator(const Generator&) = delete;

    MemoryPlan memory_plan() const { return memory_.plan(); }
    // Allocates what the plan says; nothing is allocated afterwards. Error if memory cannot be allocated.
    void allocate();
    void load(const Values& values);
    Decoder<T>& decoder() { return decoder_; }

private:
    Context context_;
    const std::unique_ptr<Family<T>> family_;
    const TensorTable table_;
    Memory memory_;
    Decoder<T> decoder_;
    size_t block_floats_ = 0;   // rows that are loaded at a time; one of the longest, or more
    float* staging_ = nullptr;  // the block's fp32 weights on the device, where they are converted
    std::byte* gemm_workspace_ = nullptr;
    size_t gemm_workspace_bytes_ = 0;
};

extern template class Generator<float>;
extern template class Generator<bfloat16>;
