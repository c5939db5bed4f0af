// tensor_table.h: the one list of a model's parameters.
//   Allocation, initialisation, weight decay, communication buckets, optimizer state, checkpoints and the
//   memory plan all follow from it. A family adds its rows (models/gpt2/gpt2_table.cpp).
#pragma once
#include <cstddef>
#include <string>
#include <vector>

// The index of a tensor in its table.
using TensorId = size_t;
// The weight and the bias of a layernorm or of a matrix product.
struct Affine {
    TensorId weight, bias;
};

// The initial value of a tensor's elements: normally distributed, or constant.
struct Init {
    float std = 0, value = 0;

    static Init normal(float std) { return {.std = std}; }
    static Init constant(float value) { return {.value = value}; }
};

// A row of the table: everything that a family says of a tensor.
struct Row {
    std::string name;           // in Hugging Face's files
    std::vector<size_t> shape;  // (out, in) for weights
    Init init;
    // Its gradient is overwritten by a matrix product in the first micro-step; other gradients are zeroed
    // and added to.
    bool from_matmul = false;
    bool transposed = false;   // Hugging Face's files hold the transpose
    bool int8 = false;         // --quantize int8 rounds it
    size_t unpadded_rows = 0;  // rows without padding, which is zero and stays zero; 0: all
};

struct Tensor : Row {
    size_t elements;
    size_t unpadded_elements;
    bool weight_decay;  // true for tensors of two or more dimensions
    size_t group;
    size_t offset;  // in elements, from the start of the flat buffer

    // As in a file: without padding, transposed if the file's tensor is.
    std::vector<size_t> shape_in_file() const;
};

// The unit of communication between processes: a group or, if that is large, a piece of one. Its size, gaps
// included, divides into world_size equal parts, each of them aligned.
struct Bucket {
    size_t offset, elements;
    size_t group;
};

// A contiguous range of the flat buffer whose tensors agree in weight_decay and from_matmul. Under
// ZeRO-1, also the part of such a range, or of a tensor, whose optimizer state one process keeps: process
// `rank` owns part `rank` of each bucket.
struct FlatRange {
    size_t offset, elements;
    // Offset of its optimizer state: equal to `offset`, or under ZeRO-1 an offset among the rank's parts.
    size_t state_offset;
    TensorId tensor;  // the tensor in which it begins
    bool weight_decay, from_matmul;
};

class TensorTable {
public:
    // The number of processes changes only the gaps of the layout.
    explicit TensorTable(int blocks, int world_size = 1);

    // Groups: tensors whose gradients are complete at the same time, and which are communicated together.
    // In memory the embedding's come first, then the blocks', then those that only the head has.
    size_t embedding() const { return 0; }
    size_t block(int l) const { return 1 + static_cast<size_t>(l); }
    size_t head() const { return groups_ - 1; }
    size_t groups() const { return groups_; }
    bool is_block(size_t group) const { return group != embedding() && group != head(); }

    // Adds the tensor that follows in memory; groups in their order.
    TensorId add(size_t group, Row row);
    // Call after the last row.
    void complete();

    const std::vector<Tensor>& tensors() const { return tensors_; }
    const std::vector<FlatRange>& ranges() const { return ranges_; }
    const std::vector<Bucket>& buckets() const { return buckets_; }
    // The parts of each tensor, or of each range, that process `rank` keeps under ZeRO-1. The parts of
    // tensors leave out their padding.
    std::vector<FlatRange> shard_of_tensors(int rank) const;
    std::vector<FlatRange> shard_of_ranges(int rank) const { return shard_of(ranges_, rank); }
    const Tensor& operator[](TensorId id) const { return tensors_[id]; }
    const Tensor& named(const std::string& name) const;  // Error if no tensor has this name
    size_t elements() const { return elements_; }        // of the flat buffer, gaps included
    size_t parameters() const { return parameters_; }    // of the model, without padding

private:
    void end_group();
    void find_ranges();
    // The intersections of the ranges, sorted by offset, with the process's part of each bucket.
    std::vector<FlatRange> shard_of(const std::vector<FlatRange>& ranges, int rank) const;

    std::vector<Tensor> tensors_;
    std::vector<FlatRange> ranges_;
    std::vector<Bucket> buckets_;
    size_t groups_;
    int world_size_;
    size_t group_ = 0;  // the group that is being added
    size_t elements_ = 0, parameters_ = 0;
};
