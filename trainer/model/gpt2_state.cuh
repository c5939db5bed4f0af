// gpt2_state.cuh: reading and writing the state from which training resumes
#pragma once
#include "kernels/elementwise.cuh"
#include "kernels/optimizer_state.cuh"
#include "system/error.h"
#include "trainer/model/gpt2.h"

template <class T>
template <class E>
std::vector<float> GPT2<T>::to_host(const E* device, size_t count) const {
    std::vector<E> raw(count);
    simt::copy_to_host(raw.data(), device, count * sizeof(E), stream_);
    simt::stream_synchronize(stream_);
    return std::vector<float>(raw.begin(), raw.end());
}

template <class T>
void GPT2<T>::adopt_masters(size_t offset, size_t elements) {
    if constexpr (!std::is_same_v<T, float>)
        convert(params_ + offset, whole_masters() + offset, elements, stream_);
    if (!keeps_master_shard()) return;
    for (const Stretch& s : updates_) {
        const size_t begin = std::max(s.offset, offset),
                     end = std::min(s.offset + s.elements, offset + elements);
        if (begin < end)
            simt::copy_on_device(masters_ + s.state_offset + (begin - s.offset), grads_ + begin,
                                 (end - begin) * sizeof(float), stream_);
    }
}

template <class T>
void GPT2<T>::read_masters(float* host) {
    await_parameters();
    if (keeps_master_shard()) {
        for (const Stretch& s : updates_)
            simt::copy_on_device(grads_ + s.offset, masters_ + s.state_offset, s.elements * sizeof(float),
                                 stream_);
        Communicator::Ticket gathered = 0;
        for (const Bucket& b : table_.buckets())
            gathered = communicator_->begin(
                {Collective::all_gather, grads_ + b.offset, b.elements, Collective::fp32}, stream_);
        communicator_->wait(gathered, stream_);
    }
    if (host) simt::copy_to_host(host, whole_masters(), table_.elements() * sizeof(float), stream_);
    simt::stream_synchronize(stream_);
}

template <class T>
void GPT2<T>::write_masters(const float* host) {
    await_parameters();
    simt::copy_to_device(whole_masters(), host, table_.elements() * sizeof(float), stream_);
    adopt_masters(0, table_.elements());
    simt::stream_synchronize(stream_);
}

template <class T>
std::vector<std::string> GPT2<T>::optimizer_buffers() const {
    return optimizer_buffer_names(options_.optimizer, options_.momentum);
}

template <class T>
float* GPT2<T>::optimizer_buffer(const std::string& name) const {
    if (!options_.training)
        throw Error("this model was allocated for evaluation only: it has no optimizer state");
    const std::vector<std::string> names = optimizer_buffers();
    for (size_t i = 0; i < names.size(); i++) {
        if (names[i] == name) return optimizer_buffers_[i];
    }
    throw Error("the optimizer keeps no buffer called " + name);
}

template <class T>
void GPT2<T>::read_optimizer(const std::string& buffer, float* host) const {
    simt::copy_to_host(host, optimizer_buffer(buffer), state_elements() * sizeof(float), stream_);
    simt::stream_synchronize(stream_);
}

template <class T>
void GPT2<T>::write_optimizer(const std::string& buffer, const float* host) {
    float* const own = optimizer_buffer(buffer);
    if (options_.sharded()) {
        for (const Stretch& s : updates_)
            simt::copy_to_device(own + s.state_offset, host + s.offset, s.elements * sizeof(float), stream_);
    } else {
        simt::copy_to_device(own, host, table_.elements() * sizeof(float), stream_);
    }
    simt::stream_synchronize(stream_);
}

template <class T>
int GPT2<T>::optimizer_step() const {
    OptimizerState state;
    simt::copy_to_host(&state, optimizer_state_, sizeof(state), stream_);
    simt::stream_synchronize(stream_);
    return state.step;
}

template <class T>
void GPT2<T>::set_optimizer_step(int step) {
    OptimizerState state = {};  // every update computes the other members
    state.step = step;
    simt::copy_to_device(optimizer_state_, &state, sizeof(state), stream_);
    simt::stream_synchronize(stream_);
}
