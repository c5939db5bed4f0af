// flat_layout.h: what a tensor is to the optimizer, how a table's tensors lie in one flat buffer, and how the
// processes divide it.
#pragma once
#include <cstddef>

// The index of a tensor in its table.
using TensorId = size_t;

// Muon updates a matrix as a whole, and the other roles by AdamW, each with a learning rate of its own.
enum class Role { matrix, embedding, head, vector };
constexpr size_t role_count = 4;

// The place of a tensor in memory depends on this and on the order of the table's rows.
struct TableLayout {
    TableLayout(int world_size = 1, bool whole_matrices = false)
        : world_size(world_size), whole_matrices(whole_matrices) {}
    int world_size;
    // Muon's: each matrix, with those joined to it, is a bucket, which under ZeRO-1 one process updates.
    bool whole_matrices;
};

// The unit of communication between processes: a group or, if that is large, a piece of one. Its size, gaps
// included, divides into world_size equal parts, each of them aligned. A matrix that has an owner does not.
struct Bucket {
    size_t offset, elements;
    size_t group;
    size_t second_offset;  // among the buckets without an owner
    int owner = -1;        // the process that updates it; -1: each process has its part

    bool is_whole() const { return owner >= 0; }
};

// A contiguous range of the flat buffer whose tensors agree in weight_decay and from_matmul. Under
// ZeRO-1, also the part of such a range, or of a tensor, whose optimizer state one process keeps: process
// `rank` owns part `rank` of each bucket. With whole matrices, each of them is a range, and the tensors of
// another range have one role.
struct FlatRange {
    size_t offset, elements;
    // Offset of its optimizer state: equal to `offset`, or under ZeRO-1 an offset among the rank's parts.
    size_t state_offset;
    TensorId tensor;  // the tensor in which it begins
    bool weight_decay, from_matmul;
    // The same in the second buffer of optimizer state, which whole matrices do not have.
    size_t second_offset = 0;

    size_t offset_in(size_t buffer) const { return buffer == 0 ? state_offset : second_offset; }
};
