// model_evaluation.cuh: forward passes outside of training steps, and what tests and reports look at
#pragma once
#include <algorithm>

#include "system/error.h"
#include "trainer/engine/model.h"

template <class T>
double Model<T>::evaluate(const Batch& batch) {
    upload(batch);
    forward_to_head();
    head_chunks(false);
    operation("sum of losses", cost::pass<float>(1, rows()));
    sum_losses(eval_loss_, losses_, rows(), false, context_.stream);
    context_.profile.end(context_.stream);
    float loss = 0;
    simt::copy_to_host(&loss, eval_loss_, sizeof(loss), context_.stream);
    simt::stream_synchronize(context_.stream);
    return static_cast<double>(loss);
}

template <class T>
Decoder<T>& Model<T>::decoder() {
    if (!decoder_) throw Error("decoder: this model was allocated without generated_tokens");
    parameters_.await_all();
    return *decoder_;
}

template <class T>
void Model<T>::rehearse(const Batch& batch) {
    const ModelOptions& o = options();
    const size_t micro_batch =
        static_cast<size_t>(o.B) * static_cast<size_t>(o.T) * static_cast<size_t>(o.world_size);
    // The second micro-step runs other matmuls: those that add to the gradients.
    for (size_t micro = 0; micro < std::min<size_t>(2, o.total_batch / micro_batch); micro++) {
        forward(batch);
        backward(false);
    }
    context_.micro_step = 0;
    update_.matrices().rehearse();
    simt::stream_synchronize(context_.stream);
}

template <class T>
std::vector<float> Model<T>::activation(const std::string& name, int layer) const {
    if (name != "logits") {
        const auto found = family_->activation(name, layer);
        return to_host(found.values, found.elements, context_.stream);
    }
    if (head_in_chunks())
        throw Error(
            fmt::format("logits of {} chunks are not kept; expected one chunk", options().head_chunks));
    return to_host(logits_, rows() * Vp(), context_.stream);
}

template <class T>
std::vector<float> Model<T>::losses() const {
    return to_host(losses_, rows(), context_.stream);
}
