// tensor_table.h: the one list of the model's parameters.
//   Allocation, initialisation, weight decay, communication buckets, optimizer state, checkpoints and the
//   memory plan all follow from it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/model/gpt2_config.h"

// The parameters in memory order: embeddings, the layers one by one, final layernorm. In a layer the
// matrices come first, so that all tensors with weight decay are contiguous, and so are all without.
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
    residual_normal,  // N(0, 0.02 / sqrt(2 L)), since 2 L of these outputs are summed in the residual stream
    zeros,
    ones,
};

struct Tensor {
    Kind kind;
    int layer;                  // -1 outside the layers
    std::string name;           // its name in Hugging Face's files
    std::vector<size_t> shape;  // (out, in) for weights; wte has Vp rows
    size_t elements;
    size_t unpadded_elements;  // wte: V * C; the padding is zero and stays zero
    bool weight_decay;         // true for tensors of two or more dimensions
    // Its gradient is overwritten by a matmul in the first micro-step; other gradients are zeroed and
    // added to.
    bool from_matmul;
    Init init;
    // Tensors of a group have complete gradients at the same time. 0: embeddings, 1 + l: layer l, 1 + L:
    // final layernorm.
    int group;
    size_t offset;  // in elements, from the start of the flat buffer
};

// The unit of communication between processes: a group or, since the embeddings are large, a piece of
// one. Its size, gaps included, divides into world_size equal parts, each of them aligned.
struct Bucket {
    size_t offset, elements;
    int group;
};

// A contiguous range of the flat buffer whose tensors agree in weight_decay and from_matmul. Under
// ZeRO-1, also the part of such a range, or of a tensor, whose optimizer state one process keeps: process
// `rank` owns part `rank` of each bucket.
struct Stretch {
    size_t offset, elements;
    // Offset of its optimizer state: equal to `offset`, or under ZeRO-1 an offset among the rank's parts.
    size_t state_offset;
    size_t tensor;  // index in tensors() of the tensor in which it begins
    bool weight_decay, from_matmul;
};

class TensorTable {
public:
    // The number of processes changes only the gaps of the layout. UsageError for an impossible shape.
    explicit TensorTable(const GPT2Config& config, int world_size = 1);

    const std::vector<Tensor>& tensors() const { return tensors_; }
    const std::vector<Stretch>& stretches() const { return stretches_; }
    const std::vector<Bucket>& buckets() const { return buckets_; }
    // The parts of each tensor, or of each stretch, that process `rank` keeps under ZeRO-1. The parts of
    // wte leave out the vocabulary's padding.
    std::vector<Stretch> shard_of_tensors(int rank) const;
    std::vector<Stretch> shard_of_stretches(int rank) const;
    const Tensor& at(Kind kind, int layer = -1) const;
    size_t elements() const { return elements_; }      // of the flat buffer, gaps included
    size_t parameters() const { return parameters_; }  // of the model, without padding

private:
    struct Row;  // what differs from tensor to tensor
    void add(const Row& row, int layer, int group, size_t unpadded_rows = 0);
    void add_block(size_t C, int layer);
    void end_group(int group);
    void find_stretches();
    // The intersections of the stretches, sorted by offset, with the process's part of each bucket.
    std::vector<Stretch> shard_of(const std::vector<Stretch>& stretches, int rank) const;

    std::vector<Tensor> tensors_;
    std::vector<Stretch> stretches_;
    std::vector<Bucket> buckets_;
    const int world_size_;
    size_t elements_ = 0, parameters_ = 0;
};
