// tensor_table.h: the one list of the model's parameters.
//   Allocation, initialisation, weight decay, buckets of communication, optimizer state, checkpoints and the
//   memory plan all read this list.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/model/gpt2_config.h"

// The parameters in the order in which they lie in memory: embeddings, layer by layer, final layernorm.
// In a layer the matrices come first, so that everything with weight decay is one stretch and everything
// without another.
enum class Kind {
    wte,
    wpe,
    qkvw,
    attprojw,
    fcw,
    fcprojw,
    ln1w,
    ln1b,
    qkvb,
    attprojb,
    ln2w,
    ln2b,
    fcb,
    fcprojb,
    lnfw,
    lnfb
};

enum class Init {
    normal,           // N(0, 0.02)
    residual_normal,  // N(0, 0.02 / sqrt(2 L)): 2 L of these add up in the residual stream
    zeros,
    ones,
};

struct Tensor {
    Kind kind;
    int layer;                  // -1 outside the layers
    std::string name;           // Hugging Face's
    std::vector<size_t> shape;  // (out, in) for weights; wte has Vp rows
    size_t elements;
    size_t unpadded_elements;  // wte: V * C; the rest is zero and stays so
    bool weight_decay;         // two or more dimensions
    // its gradient is first written, not added, by a matmul; the others start from zero
    bool from_matmul;
    Init init;
    // whose gradients are complete at the same time. 0: embeddings, 1 + l: layer l, 1 + L: final layernorm
    int group;
    size_t offset;  // in elements, from the start of the flat buffer
};

// What several processes communicate at once: a group, or, since the embeddings are large, a piece of it. As
// many elements as divide into an aligned part for each process, gaps included.
struct Bucket {
    size_t offset, elements;
    int group;
};

// A stretch of the flat buffer without gaps, whose tensors agree in weight_decay and from_matmul; or the part
// of one, or of a tensor, whose optimizer state one process keeps under ZeRO-1: part `rank` of each bucket is
// its own.
struct Stretch {
    size_t offset, elements;
    size_t state_offset;  // of its optimizer state: the same, or under ZeRO-1 among the process's parts
    size_t tensor;        // the tensor it begins in, an index into tensors()
    bool weight_decay, from_matmul;
};

class TensorTable {
public:
    // The layout, its gaps only, depends on the number of processes.
    explicit TensorTable(const GPT2Config& config, int world_size = 1);

    const std::vector<Tensor>& tensors() const { return tensors_; }
    const std::vector<Stretch>& stretches() const { return stretches_; }
    const std::vector<Bucket>& buckets() const { return buckets_; }
    // The parts of each tensor, or of each stretch, that process `rank` keeps under ZeRO-1. The padding of
    // the vocabulary is left out of the tensors.
    std::vector<Stretch> shard_of_tensors(int rank) const;
    std::vector<Stretch> shard_of_stretches(int rank) const;
    const Tensor& at(Kind kind, int layer = -1) const;
    size_t elements() const { return elements_; }      // of the flat buffer, gaps included
    size_t parameters() const { return parameters_; }  // of the model, padding not counted

private:
    struct Row;  // what differs from tensor to tensor
    void add(const Row& row, int layer, int group, size_t unpadded_rows = 0);
    void add_block(size_t C, int layer);
    void end_group(int group);
    void find_stretches();
    // The parts of the stretches, which are in the order of their offsets, in the process's part of each
    // bucket.
    std::vector<Stretch> shard_of(const std::vector<Stretch>& stretches, int rank) const;

    std::vector<Tensor> tensors_;
    std::vector<Stretch> stretches_;
    std::vector<Bucket> buckets_;
    const int world_size_;
    size_t elements_ = 0, parameters_ = 0;
};
