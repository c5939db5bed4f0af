// gpt2_update.cuh: the end of a step: gradients summed over processes, their norm, and the optimizer.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "kernels/adamw.cuh"
#include "kernels/cross_entropy.cuh"
#include "kernels/elementwise.cuh"
#include "kernels/global_norm.cuh"
#include "kernels/optimizer_state.cuh"
#include "kernels/rmsprop.cuh"
#include "kernels/sgd.cuh"
#include "system/error.h"
#include "trainer/model/gpt2.h"

// Begins to sum a group's gradients, which are complete, over the processes. With ZeRO-1 each process
// receives the sums of its own part only.
template <class T>
void GPT2<T>::reduce(int group) {
    if (alone()) return;
    const Collective::Kind kind = options_.sharded() ? Collective::reduce_scatter : Collective::all_reduce;
    for (const Bucket& b : table_.buckets()) {
        if (b.group != group) continue;
        operation("send gradients");
        if (options_.reduce_bf16) {
            convert(rounded_grads_ + b.offset, grads_ + b.offset, b.elements, stream_);
            reduced_ = communicator_->begin({kind, rounded_grads_ + b.offset, b.elements, Collective::bf16},
                                            stream_);
        } else {
            reduced_ = communicator_->begin({kind, grads_ + b.offset, b.elements, Collective::fp32}, stream_);
        }
    }
}

template <class T>
void GPT2<T>::wait_for_gradients() {
    if (alone()) return;
    if (reduced_ == 0)
        throw Error("update: backward was not called with last_micro_step = true in this step");
    operation("wait for gradients");
    communicator_->wait(reduced_, stream_);
    reduced_ = 0;
    if (!options_.reduce_bf16) return;
    for (const Stretch& s : updates_)
        convert(grads_ + s.offset, rounded_grads_ + s.offset, s.elements, stream_);
}

// Begins to gather the parameters, each part from the process that updated it, in the order in which
// forward needs them.
template <class T>
void GPT2<T>::gather_parameters() {
    const Collective::Element element = std::is_same_v<T, float> ? Collective::fp32 : Collective::bf16;
    operation("send parameters");
    for (const Bucket& b : table_.buckets())
        gathered_[size(b.group)] =
            communicator_->begin({Collective::all_gather, params_ + b.offset, b.elements, element}, stream_);
}

template <class T>
void GPT2<T>::await_group(int group) {
    Communicator::Ticket& ticket = gathered_[size(group)];
    if (ticket == 0) return;
    operation("wait for parameters");
    communicator_->wait(std::exchange(ticket, 0), stream_);
}

template <class T>
void GPT2<T>::await_parameters() {
    for (int group = 0; group < config_.L + 2; group++) await_group(group);
}

template <class T>
size_t GPT2<T>::bytes_sent() const {
    const auto sent = [&](Collective::Kind kind, Collective::Element element) {
        return Collective{kind, nullptr, table_.elements(), element}.bytes_sent(options_.world_size);
    };
    const Collective::Element gradients = options_.reduce_bf16 ? Collective::bf16 : Collective::fp32;
    if (!options_.sharded()) return sent(Collective::all_reduce, gradients);
    return sent(Collective::reduce_scatter, gradients) +
           sent(Collective::all_gather, std::is_same_v<T, float> ? Collective::fp32 : Collective::bf16);
}

template <class T>
void GPT2<T>::begin_step() {
    profile_.begin_step();
    if (finished_ == begun_) simt::event_record(ended_[(begun_ + kept_steps - 1) % kept_steps], stream_);
}

template <class T>
void GPT2<T>::begin_update(const OptimizerOptions& options, const StepFlags& flags, const Veto& veto) {
    if (begun_ == finished_ + 2)
        throw Error("begin_update: two steps are under way; expected finish_update before a third");
    const size_t step = begun_ % kept_steps;
    wait_for_gradients();
    part(StepGraphs::gradient_norm, [&] { sum_squared_gradients(); });
    sum_over_ranks(step, flags);
    micro_step_ = 0;
    vetoed_[step].clear();
    if (veto) {
        simt::stream_synchronize(stream_);
        vetoed_[step] = veto(step_result(step));
    }
    if (vetoed_[step].empty()) update_parameters(step, options);
    profile_.end(stream_);
    simt::event_record(ended_[step], stream_);
    begun_++;
}

template <class T>
void GPT2<T>::sum_squared_gradients() {
    for (size_t i = 0; i < normed_.size(); i++) {
        operation("gradient norm", cost::pass<float>(1, normed_[i].elements));
        global_norm_squared(work_.part_norms + i, work_.norm, grads_ + normed_[i].offset, normed_[i].elements,
                            stream_);
    }
    operation("sum of norms");
    if (normed_.empty()) simt::fill_zero(norm_squared_, sizeof(float), stream_);
    else sum_losses(norm_squared_, work_.part_norms, normed_.size(), false, stream_);
}

// Sums the step's loss, squared norm and flags over the processes and copies them to the host.
template <class T>
void GPT2<T>::sum_over_ranks(size_t step, const StepFlags& flags) {
    HostNumbers& numbers = numbers_[step];
    numbers.sums[2] = flags.stop, numbers.sums[3] = flags.writing;
    // A NaN in one process is a NaN in the sum: a norm by which every process skips the update, a loss that
    // --skip-loss-z does not take in, and a flag that step_result() distinguishes from 1.
    if (flags.unread) std::fill_n(numbers.sums, 3, std::numeric_limits<float>::quiet_NaN());
    numbers.targets = static_cast<double>(step_targets_ < 0 ? options_.total_batch : step_targets_);
    // Without a target, a norm that is NaN makes every optimizer skip the step.
    numbers.gradient_weight = numbers.targets > 0
                                  ? static_cast<double>(options_.total_batch) / numbers.targets
                                  : std::numeric_limits<double>::quiet_NaN();
    operation("flags to the device");
    const size_t first = flags.unread ? 0 : 2;
    simt::copy_to_device(step_sums_ + first, numbers.sums + first, (4 - first) * sizeof(float), stream_);
    if (!alone()) {
        operation("loss, norm and flags of all processes");
        communicator_->wait(
            communicator_->begin({Collective::all_reduce, step_sums_, 4, Collective::fp32}, stream_),
            stream_);
    }
    operation("loss, norm and flags to the host");
    simt::copy_to_host(numbers.sums, step_sums_, sizeof(numbers.sums), stream_);
    profile_.end(stream_);
}

template <class T>
void GPT2<T>::update_parameters(size_t step, const OptimizerOptions& options) {
    HostNumbers& numbers = numbers_[step];
    numbers.lr = options.lr;
    operation("learning rate to the device");
    static_assert(offsetof(OptimizerState, gradient_weight) ==
                      offsetof(OptimizerState, lr) + sizeof(double) &&
                  offsetof(HostNumbers, gradient_weight) == offsetof(HostNumbers, lr) + sizeof(double));
    simt::copy_to_device(&optimizer_state_->lr, &numbers.lr, 2 * sizeof(double), stream_);
    OptimizerOptions constants = options;
    constants.lr = 0;
    if (!(constants == captured_)) graphs_.discard(StepGraphs::parameter_update);
    captured_ = constants;
    part(StepGraphs::parameter_update, [&] {
        operation("clip and count");
        optimizer_prepare(optimizer_state_, norm_squared_, static_cast<float>(options.clip), options.beta1,
                          options.beta2, stream_);
        for (const Stretch& s : updates_) update_stretch(s, options);
    });
    if (options_.sharded()) gather_parameters();
}

template <class T>
void GPT2<T>::update_stretch(const Stretch& s, const OptimizerOptions& o) {
    T* const params = params_ + s.offset;
    float* const masters = masters_ + (keeps_master_shard() ? s.state_offset : s.offset);
    float* const grads = grads_ + s.offset;
    float* const first = optimizer_buffers_[0] ? optimizer_buffers_[0] + s.state_offset : nullptr;
    float* const second = optimizer_buffers_[1] ? optimizer_buffers_[1] + s.state_offset : nullptr;
    const double decay = s.weight_decay ? o.weight_decay : 0.0;
    operation("optimizer", cost::update(s.elements, size(first != nullptr) + size(second != nullptr),
                                        std::is_same_v<T, float> ? 0 : sizeof(T)));
    switch (options_.optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam:
            adamw_update(params, masters, first, second, grads, s.elements,
                         {.beta1 = o.beta1,
                          .beta2 = o.beta2,
                          .eps = o.eps,
                          .weight_decay = decay,
                          .decoupled = options_.optimizer == Optimizer::adamw},
                         optimizer_state_, stream_);
            break;
        case Optimizer::sgd:
            sgd_update(params, masters, first, grads, s.elements,
                       {.momentum = o.momentum, .weight_decay = decay, .nesterov = o.nesterov},
                       optimizer_state_, stream_);
            break;
        case Optimizer::rmsprop:
            rmsprop_update(params, masters, first, second, grads, s.elements,
                           {.alpha = o.beta2, .eps = o.eps, .momentum = o.momentum, .weight_decay = decay},
                           optimizer_state_, stream_);
            break;
    }
}

template <class T>
StepResult GPT2<T>::finish_update() {
    if (finished_ == begun_) throw Error("finish_update: no update has begun");
    const size_t step = finished_ % kept_steps, before = (finished_ + kept_steps - 1) % kept_steps;
    const double ms = static_cast<double>(simt::event_elapsed_ms(ended_[before], ended_[step]));  // waits
    StepResult result = step_result(step);
    result.ms = ms;
    result.skipped = vetoed_[step];
    if (!result.has_targets) result.skipped = "no target counts, because masks hide all of them";
    else if (result.skipped.empty() && !std::isfinite(result.grad_norm))
        result.skipped = "grad_norm is not finite";
    finished_++;
    return result;
}

// Valid once the step's numbers have reached the host.
template <class T>
StepResult GPT2<T>::step_result(size_t step) const {
    const auto& [lr, weight, sums, targets] = numbers_[step];
    return {.loss = sums[0] / static_cast<float>(targets),
            .grad_norm = static_cast<float>(weight) * std::sqrt(sums[1]),
            .has_targets = targets > 0,
            .any = {.stop = sums[2] > 0, .writing = sums[3] > 0, .unread = std::isnan(sums[2])}};
}
