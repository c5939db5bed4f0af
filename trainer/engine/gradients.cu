#include <algorithm>
#include <utility>

#include "kernels/cross_entropy.cuh"
#include "kernels/global_norm.cuh"
#include "kernels/random.cuh"
#include "system/error.h"
#include "trainer/engine/gradients.h"

Gradients::Gradients(const TensorTable& table, Context& context, Memory& memory)
    : table_(table), context_(context), updated_(table.ranges()), normed_(table.ranges()) {
    const ModelOptions& o = context.options;
    if (!o.alone()) normed_ = table.shard_of_ranges(o.rank);
    if (o.sharded()) updated_ = normed_;
    if (!o.training) return;
    memory.gradients.reserve(values_, table.elements());
    if (o.reduce_bf16 && !o.alone()) memory.gradients.reserve(rounded_, table.elements());
    memory.workspace.reserve(scratch_, global_norm_scratch(table.elements()));
    // One norm for each range of the gradient norm, or for each tensor's gradient and weights.
    const size_t tensors = o.sharded() ? table.shard_of_tensors(o.rank).size() : table.tensors().size();
    memory.workspace.reserve(range_norms_, std::max(normed_.size(), 2 * tensors));
}

void Gradients::clear() {
    if (values_) simt::fill_zero(values_, table_.elements() * sizeof(float), context_.stream);
}

void Gradients::begin_step() {
    for (const FlatRange& r : table_.ranges()) {
        if (r.from_matmul) continue;
        context_.operation("zero gradients", cost::pass<float>(1, r.elements));
        simt::fill_zero(values_ + r.offset, r.elements * sizeof(float), context_.stream);
    }
}

void Gradients::reduce(size_t group) {
    const ModelOptions& o = context_.options;
    if (o.alone()) return;
    for (const Bucket& b : table_.buckets()) {
        if (b.group != group) continue;
        const Collective::Kind kind = sum_of(b);
        context_.operation("send gradients");
        if (o.reduce_bf16) convert(rounded_ + b.offset, values_ + b.offset, b.elements, context_.stream);
        const Collective sum = o.reduce_bf16
                                   ? Collective{kind, rounded_ + b.offset, b.elements, Collective::bf16}
                                   : Collective{kind, values_ + b.offset, b.elements, Collective::fp32};
        reduced_ = context_.communicator->begin(sum, context_.stream);
    }
}

void Gradients::await_sums() {
    if (context_.options.alone()) return;
    if (reduced_ == 0)
        throw Error("update: backward was not called with last_micro_step = true in this step");
    context_.operation("wait for gradients");
    context_.communicator->wait(std::exchange(reduced_, 0), context_.stream);
    if (!context_.options.reduce_bf16) return;
    for (const FlatRange& r : updated_)
        convert(values_ + r.offset, rounded_ + r.offset, r.elements, context_.stream);
}

void Gradients::squared_norm(float* out, const float* values, size_t elements) {
    global_norm_squared(out, scratch_, values, elements, context_.stream);
}

void Gradients::sum_squares(float* norm_squared) {
    for (size_t i = 0; i < normed_.size(); i++) {
        context_.operation("gradient norm", cost::pass<float>(1, normed_[i].elements));
        squared_norm(range_norms_ + i, values_ + normed_[i].offset, normed_[i].elements);
    }
    context_.operation("sum of norms");
    if (normed_.empty()) simt::fill_zero(norm_squared, sizeof(float), context_.stream);
    else sum_losses(norm_squared, range_norms_, normed_.size(), false, context_.stream);
}
