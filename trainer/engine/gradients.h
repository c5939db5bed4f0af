// gradients.h: the gradients of all parameters, fp32 in one flat buffer, and their sums over the processes.
#pragma once
#include <vector>

#include "trainer/engine/arena.h"
#include "trainer/engine/context.h"
#include "trainer/engine/tensor_table.h"

class Gradients {
public:
    Gradients(const TensorTable& table, Context& context, Memory& memory);

    float* at(TensorId id) const { return values_ + table_[id].offset; }
    float* flat() const { return values_; }
    void clear();  // zeroes them all, gaps included, since an all-reduce sums the gaps too

    // Zeroes the gradients that kernels only add to. Matrix products overwrite their weights' gradients in
    // the first micro-step.
    void begin_step();
    // Begins to sum a group's gradients, which are complete, over the processes. With ZeRO-1 each process
    // receives the sums of its own part only.
    void reduce(size_t group);
    // How a bucket is summed: in parts, each for one process, or whole.
    Collective::Kind sum_of(const Bucket& b) const {
        return context_.options.sharded() && !b.is_whole() ? Collective::reduce_scatter
                                                           : Collective::all_reduce;
    }
    // Waits for the sums of all groups. Error if none has begun.
    void await_sums();
    // norm_squared[0] = the sum of the squares of this process's share of the sums
    void sum_squares(float* norm_squared);
    // out[0] = the sum of the squares of `elements` values; scratch for results of several such calls.
    void squared_norm(float* out, const float* values, size_t elements);
    float* norms() const { return range_norms_; }

    // The ranges that this process updates: all of them, or with ZeRO-1 its part of each.
    const std::vector<FlatRange>& updated() const { return updated_; }
    Communicator::Ticket latest() const { return reduced_; }  // 0: nothing is being summed

private:
    const TensorTable& table_;
    Context& context_;
    float* values_ = nullptr;
    bfloat16* rounded_ = nullptr;  // what is summed over the processes with reduce_bf16
    float *scratch_ = nullptr, *range_norms_ = nullptr;
    // ranges that this process updates, and those whose squares it sums
    std::vector<FlatRange> updated_, normed_;
    Communicator::Ticket reduced_ = 0;  // for the last bucket
};
