// model.cuh: a training step of any family: micro-steps, and what ends a step.
#pragma once
#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "kernels/capped_cross_entropy.cuh"
#include "system/error.h"
#include "trainer/engine/model.h"

template <class T>
void Model<T>::forward_pass() {
    forward_to_head();
    head_chunks(true);
    operation("sum of losses", cost::pass<float>(1, rows()));
    sum_losses(&step_sums_->loss, losses_, rows(), context_.accumulates(), context_.stream);
}

template <class T>
void Model<T>::forward_to_head() {
    family_->embed();
    for (int l = 0; l < config().L; l++) family_->block_forward(l);
}

// A group's gradients are sent as soon as they are complete.
template <class T>
void Model<T>::backward_pass(bool last_micro_step) {
    const auto complete = [&](size_t group) {
        if (last_micro_step) gradients_.reduce(group);
    };
    if (!context_.accumulates()) gradients_.begin_step();
    if (!head_in_chunks()) head_backward(0, rows());
    family_->head_norm_backward();
    complete(table_.head());
    for (int l = config().L - 1; l >= 0; l--) {
        family_->block_backward(l);
        complete(table_.block(l));
    }
    family_->embed_backward();
    complete(table_.embedding());
}

// The head, one chunk of rows after the other. Each chunk's logits overwrite the gradients of the chunk
// before, so with --head-chunks each chunk's backward follows its forward at once, and backward_pass
// skips the head.
template <class T>
void Model<T>::head_chunks(bool training) {
    for (size_t begin = 0; begin < rows(); begin += head_rows()) {
        const size_t count = std::min(head_rows(), rows() - begin);
        head_forward(begin, count, training);
        if (training && head_in_chunks()) head_backward(begin, count);
    }
}

// Logits and losses of rows begin .. begin + count - 1. In training, the logits' gradients overwrite the
// logits.
template <class T>
void Model<T>::head_forward(size_t begin, size_t count, bool training) {
    const Head<T> head = family_->head();
    const T* const weight = parameters_.value(head.weight);
    operation("head", cost::matmul<T>(count, channels(), Vp()));
    context_.gemm->forward(logits_, head.input + begin * channels(), weight, static_cast<const T*>(nullptr),
                           count, channels(), Vp(), context_.stream);
    operation("classifier", cost::classifier<T>(count, Vp(), training));
    const float dloss = training ? 1.0f / static_cast<float>(options().total_batch) : 0.0f;
    classify(logits_, losses_ + begin, context_.targets() + begin, dloss, head.cap, count, config().V,
             static_cast<int>(Vp()), training, context_.stream);
}

// dweight is overwritten by the step's first rows and added to by later ones. dinput receives these rows'
// gradient of the head's input.
template <class T>
void Model<T>::head_backward(size_t begin, size_t count) {
    const Head<T> head = family_->head();
    const T* const weight = parameters_.value(head.weight);
    const bool accumulate = context_.accumulates() || begin > 0;
    operation("head dW", cost::matmul_weight<T>(count, channels(), Vp(), accumulate));
    context_.gemm->backward_weight(gradients_.at(head.weight), nullptr, logits_,
                                   head.input + begin * channels(), count, channels(), Vp(), accumulate,
                                   context_.stream);
    operation("head dX", cost::matmul<T>(count, channels(), Vp()));
    context_.gemm->backward_input(head.dinput + begin * channels(), logits_, weight, count, channels(), Vp(),
                                  context_.stream);
}

template <class T>
size_t Model<T>::head_rows() const {
    return simt::ceil_div(static_cast<size_t>(options().B) * static_cast<size_t>(options().T),
                          static_cast<size_t>(options().head_chunks));
}

template <class T>
void Model<T>::upload(const Batch& batch) {
    CHECK(batch.B > 0 && batch.B <= options().B && batch.T > 0 && batch.T <= options().T,
          "a batch of {} x {} tokens in a model allocated for {} x {}", batch.B, batch.T, options().B,
          options().T);
    operation("tokens to the device", {.bytes = batch.bytes()});
    simt::copy_to_device(context_.tokens, batch.inputs, batch.bytes(), context_.stream);
    // Two calls after this one the loader may refill this batch's memory. Waiting here for the previous
    // batch's copy makes that safe, and keeps the host at most one micro-step ahead of the GPU.
    simt::event_record(copied_[uploads_ % 2], context_.stream);
    if (uploads_ > 0) simt::event_synchronize(copied_[(uploads_ - 1) % 2]);
    uploads_++;
    context_.B = batch.B, context_.T = batch.T;
}

template <class T>
template <class Work>
void Model<T>::part(StepGraphs::Part which, const Work& work) {
    context_.profile.end(context_.stream);
    if (context_.profile.measuring()) work();
    else graphs_.run(which, context_.stream, work);
    context_.profile.end(context_.stream);
}

template <class T>
void Model<T>::forward(const Batch& batch) {
    if (!options().training) throw Error("forward: this model was allocated for evaluation only");
    upload(batch);
    step_targets_ = batch.step_targets;
    const auto pass = [&] { forward_pass(); };
    // While parameters are in flight, forward waits for events of this step, which a graph could not
    // replay.
    if (whole_batch() && !parameters_.in_flight())
        part(context_.accumulates() ? StepGraphs::forward_other : StepGraphs::forward_first, pass);
    else pass();
    context_.profile.end(context_.stream);
}

template <class T>
void Model<T>::backward(bool last_micro_step) {
    const auto pass = [&] { backward_pass(last_micro_step); };
    // With one process, the last micro-step equals the others. With several it communicates gradients and
    // is not captured: the communicator times each operation by its own events (--comm-timeout), which a
    // replay would not record.
    if (whole_batch() && (options().alone() || !last_micro_step))
        part(context_.accumulates() ? StepGraphs::backward_other : StepGraphs::backward_first, pass);
    else pass();
    context_.profile.end(context_.stream);
    context_.micro_step++;
}

template <class T>
void Model<T>::begin_step() {
    context_.profile.begin_step();
    steps_.start_clock(context_.stream);
}

template <class T>
void Model<T>::begin_update(const OptimizerOptions& options, const StepFlags& flags, const Veto& veto) {
    StepsInFlight::Step& step = steps_.begin();
    gradients_.await_sums();
    part(StepGraphs::gradient_norm, [&] { gradients_.sum_squares(&step_sums_->norm_squared); });
    sum_over_ranks(step, flags);
    context_.micro_step = 0;
    std::string vetoed;
    if (veto) {
        simt::stream_synchronize(context_.stream);
        vetoed = veto(steps_.result());
    }
    if (vetoed.empty()) update_parameters(step, options);
    context_.profile.end(context_.stream);
    steps_.end(std::move(vetoed), context_.stream);
}

// Sums the step's loss, squared norm and flags over the processes and copies them to the host.
template <class T>
void Model<T>::sum_over_ranks(StepsInFlight::Step& step, const StepFlags& flags) {
    StepSums& sums = step.sums;
    sums = {.stop = flags.stop ? 1.0f : 0,
            .writing = flags.writing ? 1.0f : 0,
            .unread = flags.unread ? 1.0f : 0};
    // A NaN in one process is a NaN in the sum: a norm by which every process skips the update, and a loss
    // that --skip-loss-z does not take in.
    if (flags.unread) sums.loss = sums.norm_squared = std::numeric_limits<float>::quiet_NaN();
    const double total = static_cast<double>(options().total_batch);
    step.targets = step_targets_ < 0 ? total : static_cast<double>(step_targets_);
    // Without a target, a norm that is NaN makes every optimizer skip the step.
    step.rates[1] = step.targets > 0 ? total / step.targets : std::numeric_limits<double>::quiet_NaN();
    operation("flags to the device");
    if (flags.unread) simt::copy_to_device(step_sums_, &sums, sizeof(sums), context_.stream);
    else
        simt::copy_to_device(&step_sums_->stop, &sums.stop, sizeof(sums) - offsetof(StepSums, stop),
                             context_.stream);
    if (!options().alone()) {
        operation("loss, norm and flags of all processes");
        const Collective all = {Collective::all_reduce, step_sums_, sizeof(StepSums) / sizeof(float),
                                Collective::fp32};
        context_.communicator->wait(context_.communicator->begin(all, context_.stream), context_.stream);
    }
    operation("loss, norm and flags to the host");
    simt::copy_to_host(&sums, step_sums_, sizeof(sums), context_.stream);
    context_.profile.end(context_.stream);
}

template <class T>
void Model<T>::update_parameters(StepsInFlight::Step& step, const OptimizerOptions& options) {
    step.rates[0] = options.lr;
    update_.copy_rates(step.rates);
    OptimizerOptions constants = options;
    constants.lr = 0;
    if (!(constants == captured_)) graphs_.discard(StepGraphs::parameter_update);
    captured_ = constants;
    part(StepGraphs::parameter_update, [&] { update_.run(options, &step_sums_->norm_squared); });
    if (this->options().sharded()) parameters_.gather();
}
