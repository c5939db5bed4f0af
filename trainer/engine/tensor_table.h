// tensor_table.h: the one list of a model's parameters.
//   Allocation, initialisation, weight decay, communication buckets, optimizer state, checkpoints and the
//   memory plan all follow from it. A family adds its rows (models/gpt2/gpt2_table.cpp).
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "trainer/engine/flat_layout.h"

inline constexpr TensorId no_tensor = static_cast<TensorId>(-1);
// The weight and the bias of a norm or of a matrix product, which may have none.
struct Affine {
    TensorId weight = no_tensor, bias = no_tensor;
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
    bool joined = false;       // lies directly behind the row before: a product takes both as one matrix
    size_t unpadded_rows = 0;  // rows without padding, which is zero and stays zero; 0: all
    Role role = Role::vector;
    size_t matrices = 1;  // with Role::matrix: blocks of rows that are matrices of their own
};

struct Tensor : Row {
    size_t elements;
    size_t unpadded_elements;
    bool weight_decay;  // true for tensors of two or more dimensions
    size_t group;
    size_t offset;  // in elements, from the start of the flat buffer

    // As in a file: without padding, transposed if the file's tensor is.
    std::vector<size_t> shape_in_file() const;
    size_t rows_of_matrix() const { return shape[0] / matrices; }
};

class TensorTable {
public:
    // The layout changes only the gaps.
    explicit TensorTable(int blocks, const TableLayout& layout = {});

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
    std::vector<FlatRange> shard_of_tensors(int rank) const { return shard_of(whole_tensors(), rank); }
    std::vector<FlatRange> shard_of_ranges(int rank) const { return shard_of(ranges_, rank); }
    std::vector<FlatRange> whole_tensors() const;  // a range for each tensor, without padding
    // Floats of a buffer of optimizer state: of all tensors, or the most that a process keeps of them.
    size_t state_elements(size_t buffer, bool sharded) const;
    bool updates_whole(const Tensor& t) const { return layout_.whole_matrices && t.role == Role::matrix; }
    // Work of updating the matrices that each process owns, in units that cancel out in ratios.
    const std::vector<double>& loads_of_owners() const { return loads_; }
    const Tensor& operator[](TensorId id) const { return tensors_[id]; }
    // Rows and columns of the matrix that begins with this tensor: its own, and the rows joined to it. A
    // vector has one column.
    std::array<size_t, 2> matrix(TensorId id) const;
    const Tensor& named(const std::string& name) const;  // Error if no tensor has this name
    size_t elements() const { return elements_; }        // of the flat buffer, gaps included
    size_t parameters() const { return parameters_; }    // of the model, without padding

private:
    void end_bucket();
    void choose_owners();
    void find_ranges();
    size_t second_offset(size_t offset) const;
    // The intersections of the ranges, sorted by offset, with the process's part of each bucket.
    std::vector<FlatRange> shard_of(const std::vector<FlatRange>& ranges, int rank) const;

    std::vector<Tensor> tensors_;
    std::vector<FlatRange> ranges_;
    std::vector<Bucket> buckets_;
    size_t groups_;
    TableLayout layout_;
    std::vector<double> loads_;
    size_t group_ = 0;  // the group that is being added
    size_t elements_ = 0, second_elements_ = 0, parameters_ = 0;
};
